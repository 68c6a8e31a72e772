"""Row-invariant linears and attention on CUDA through `mx.fast.cuda_kernel`. Must not know policies or models.

The contract is that of the CPU kernels: a row's bits depend on nothing but its own inputs. Halves multiply on tensor
cores in tiles of one fixed instruction; float32 on the ordinary units, exact to float32 where MLX's own matmul
would round operands to TF32.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, cast

import mlx.core as mx

from engine.errors import EngineError
from engine.kernels.invariant.cuda_sources import (
    ATTENTION,
    FLOAT_LINEAR,
    HALF_LINEAR,
    HEADER,
    TILE_COLUMNS,
    TILE_ROWS,
    WARPS,
)

AFFINE_BITS = (2, 4, 8)
BLOCK_THREADS = 32 * WARPS
MANY_ROWS = 32
MANY_ROW_TILES = 4
FLOAT_ROWS = (1, 8)

Kernel = Callable[..., list[mx.array]]


def available() -> bool:
    """True when MLX runs on CUDA here."""
    return bool(mx.cuda.is_available())


@cache
def _kernel(name: str, inputs: tuple[str, ...], source: str) -> Kernel:
    if not available():
        raise EngineError("The invariant CUDA kernels need MLX on a CUDA device; install mlx[cuda13], or use the CPU.")
    kernel = mx.fast.cuda_kernel(name=name, input_names=inputs, output_names=("out",), source=source, header=HEADER)
    return cast("Kernel", kernel)


def _check(x: mx.array, input_size: int, group_size: int, bits: int) -> None:
    if x.ndim != 2 or x.shape[1] != input_size:
        raise EngineError(f"The invariant linear got rows of shape {x.shape} for {input_size} inputs.")
    if x.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise EngineError(f"The invariant linear works on float32, float16 and bfloat16 rows, not {x.dtype}.")
    if input_size % 32:
        raise EngineError(f"The invariant CUDA linear needs a multiple of 32 inputs, not {input_size}.")
    if bits and (bits not in AFFINE_BITS or group_size not in (32, 64, 128)):
        raise EngineError(
            f"The invariant CUDA linear reads 2, 4 and 8 bits in groups of 32 to 128, not {bits}/{group_size}."
        )


def linear_dense(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """x (M, K) by weight (N, K) of the same type, plus bias (N,): (M, N) of that type, summed in float32.

    Raises:
        EngineError: no CUDA device, or shapes or types that do not fit.
    """
    _check(x, weight.shape[1], 32, 0)
    if weight.dtype != x.dtype:
        raise EngineError(f"The invariant linear got {x.dtype} rows for {weight.dtype} weights; give one type.")
    nothing = mx.zeros((1,), x.dtype)
    out = _linear(x, weight, nothing, nothing, weight.shape[0], 0, 32)
    return out if bias is None else out + bias


def linear_affine(
    x: mx.array,
    packed: mx.array,
    scales: mx.array,
    biases: mx.array,
    *,
    bits: int,
    group_size: int,
    bias: mx.array | None = None,
) -> mx.array:
    """x (M, K) by MLX affine weights of 2, 4 or 8 bits, plus bias (N,): (M, N) in x's type, summed in float32.

    Raises:
        EngineError: no CUDA device, or shapes or types that do not fit.
    """
    input_size = packed.shape[1] * 32 // bits
    _check(x, input_size, group_size, bits)
    if scales.shape != (packed.shape[0], input_size // group_size) or biases.shape != scales.shape:
        raise EngineError(f"The invariant linear got scales {scales.shape} for packed weights {packed.shape}.")
    out = _linear(x, packed, scales, biases, packed.shape[0], bits, group_size)
    return out if bias is None else out + bias


def _linear(
    x: mx.array,
    weights: mx.array,
    scales: mx.array,
    biases: mx.array,
    columns: int,
    bits: int,
    group_size: int,
) -> mx.array:
    rows, size = x.shape
    if rows == 0:
        return mx.zeros((0, columns), x.dtype)
    inputs = [x, weights, scales, biases, mx.array([rows, size, columns], mx.int32)]
    names = ("x", "weights", "scales", "biases", "sizes")
    template: list[tuple[str, Any]] = [("BITS", bits), ("GROUP", group_size)]
    if x.dtype == mx.float32:
        per_block = FLOAT_ROWS[0] if rows == 1 else FLOAT_ROWS[1]
        kernel = _kernel("divtrace_linear_float", names, FLOAT_LINEAR)
        template.append(("ROWS", per_block))
        blocks = (-(-columns // WARPS), -(-rows // per_block))
    else:
        tiles = MANY_ROW_TILES if rows >= MANY_ROWS else 1
        kernel = _kernel("divtrace_linear_half", names, HALF_LINEAR)
        template += [("T", x.dtype), ("ROW_TILES", tiles)]
        blocks = (-(-columns // TILE_COLUMNS), -(-rows // (TILE_ROWS * tiles)))
    return kernel(
        inputs=inputs,
        template=template,
        grid=(blocks[0] * BLOCK_THREADS, blocks[1], 1),
        threadgroup=(BLOCK_THREADS, 1, 1),
        output_shapes=[(rows, columns)],
        output_dtypes=[x.dtype],
    )[0]


def paged_attention(
    queries: mx.array,
    key_pool: mx.array,
    value_pool: mx.array,
    tables: mx.array,
    table_of_row: mx.array,
    lengths: mx.array,
    *,
    scale: float,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Softmax attention of each query over the keys it sees: (rows, heads, head_size) in the queries' type.

    `queries` is (rows, heads, head_size), the pools (slots, kv_heads, head_size) of the same type, `tables` (tables,
    width) int32 slots by position; row `r` sees the first `lengths[r]` of table `table_of_row[r]`, or the last
    `window` of these. Tables and lengths are not checked here (that would wait for the device): take them from
    `visible_keys`.

    Raises:
        EngineError: no CUDA device, or shapes or types that do not fit.
    """
    rows, heads, size = queries.shape
    kv_heads = key_pool.shape[1]
    if size % 32 or heads % kv_heads or key_pool.shape != value_pool.shape or key_pool.shape[2] != size:
        raise EngineError(
            f"The invariant CUDA attention needs a head size that is a multiple of 32 and whole groups of heads, not"
            f" queries {queries.shape} over pools {key_pool.shape} and {value_pool.shape}."
        )
    if key_pool.dtype != queries.dtype or value_pool.dtype != queries.dtype:
        raise EngineError("The invariant CUDA attention needs queries and both pools of one type.")
    if rows == 0:
        return queries
    names = ("queries", "keys", "values", "tables", "table_of_row", "lengths", "sinks", "scale", "sizes")
    kernel = _kernel("divtrace_attention", names, ATTENTION)
    return kernel(
        inputs=[
            queries,
            key_pool,
            value_pool,
            tables.astype(mx.int32),
            table_of_row.astype(mx.int32),
            lengths.astype(mx.int32),
            mx.zeros((1,)) if sinks is None else sinks.astype(mx.float32),
            mx.array([scale], mx.float32),
            mx.array([rows, heads, kv_heads, tables.shape[1]], mx.int32),
        ],
        template=[
            ("T", queries.dtype),
            ("SIZE", size),
            ("WINDOW", window or 0),
            ("SINKS", sinks is not None),
        ],
        grid=(-(-rows * heads // WARPS) * BLOCK_THREADS, 1, 1),
        threadgroup=(BLOCK_THREADS, 1, 1),
        output_shapes=[queries.shape],
        output_dtypes=[queries.dtype],
    )[0]
