"""Row-invariant linears on CUDA. Must not know policies, models or attention.

The contract is that of the CPU kernels: a row's bits depend on nothing but its own inputs. Halves multiply on tensor
cores by one fixed instruction in one fixed order (`cuda_device/linear.cuh`); float32 on the ordinary units, exact
to float32 where MLX's own matmul would round operands to TF32.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import mlx.core as mx

from engine.errors import EngineError
from engine.kernels.invariant.cuda_kernels import KernelSource, available, build, integers, nothing
from engine.kernels.invariant.cuda_launch import BlockLaunch, StreamLaunch, half_launch, slice_steps

__all__ = ["AFFINE_BITS", "available", "linear_affine", "linear_dense"]

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
FLOAT_WARPS = 4
FLOAT_ROWS = (1, 8)

_INPUTS = ("x", "weights", "scales", "biases", "sizes")
_CALL = "{x, weights, scales, biases, sizes[0], sizes[1], sizes[2], out}"
_STREAM = KernelSource(
    "divtrace_stream_linear",
    ("primitives.cuh", "linear.cuh"),
    _INPUTS,
    ("out",),
    f"stream_linear<T, BITS, GROUP, TILES, ROW_TILES, SLICE_STEPS, WARPS>({_CALL});",
)
_FLOAT = KernelSource(
    "divtrace_float_linear",
    ("primitives.cuh", "float32.cuh"),
    _INPUTS,
    ("out",),
    "float_linear<BITS, GROUP, ROWS_AT_ONCE>(x, weights, scales, biases, sizes[0], sizes[1], sizes[2], out);",
)


@cache
def _block_source(shared_bytes: int) -> KernelSource:
    return KernelSource(
        "divtrace_block_linear",
        ("primitives.cuh", "linear.cuh", "block_linear.cuh"),
        _INPUTS,
        ("out",),
        "extern __shared__ uint4 memory[];"
        f" block_linear<T, BITS, GROUP, TILES, ROW_TILES, SLICE_STEPS, WARPS, STAGES>({_CALL}, memory);",
        shared_bytes,
    )


def _check(x: mx.array, input_size: int, group_size: int, bits: int) -> None:
    if x.ndim != 2 or x.shape[1] != input_size:
        raise EngineError(f"The invariant linear got rows of shape {x.shape} for {input_size} inputs.")
    if x.dtype not in (mx.float32, mx.float16, mx.bfloat16):
        raise EngineError(f"The invariant linear works on float32, float16 and bfloat16 rows, not {x.dtype}.")
    if input_size % 32:
        raise EngineError(f"The invariant CUDA linear needs a multiple of 32 inputs, not {input_size}.")
    if bits and (bits not in AFFINE_BITS or group_size not in GROUP_SIZES):
        raise EngineError(
            f"The invariant CUDA linear reads 2, 3, 4, 5, 6 and 8 bits in groups of 32 to 128, not {bits}/{group_size}."
        )


def linear_dense(x: mx.array, weight: mx.array, bias: mx.array | None = None) -> mx.array:
    """x (M, K) by weight (N, K) of the same type, plus bias (N,): (M, N) of that type, summed in float32.

    Raises:
        EngineError: no CUDA device, or shapes or types that do not fit.
    """
    _check(x, weight.shape[1], 32, 0)
    if weight.dtype != x.dtype:
        raise EngineError(f"The invariant linear got {x.dtype} rows for {weight.dtype} weights; give one type.")
    unread = nothing(x.dtype) if available() else weight
    out = _linear(x, weight, unread, unread, weight.shape[0], 0, 32)
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
    """x (M, K) by MLX affine weights of 2, 3, 4, 5, 6 or 8 bits, plus bias (N,): (M, N) in x's type.

    Sums are taken in float32; for halves, a weight is q * scale + bias rounded once to x's type.

    Raises:
        EngineError: no CUDA device, or shapes or types that do not fit.
    """
    input_size = packed.shape[1] * 32 // bits
    _check(x, input_size, group_size, bits)
    if scales.shape != (packed.shape[0], input_size // group_size) or biases.shape != scales.shape:
        raise EngineError(f"The invariant linear got scales {scales.shape} for packed weights {packed.shape}.")
    if x.dtype != mx.float32:
        scales, biases = scales.astype(x.dtype), biases.astype(x.dtype)
    out = _linear(x, packed, scales, biases, packed.shape[0], bits, group_size)
    return out if bias is None else out + bias


def _linear(
    x: mx.array, weights: mx.array, scales: mx.array, biases: mx.array, columns: int, bits: int, group_size: int
) -> mx.array:
    rows, size = x.shape
    if rows == 0:
        return mx.zeros((0, columns), x.dtype)
    template: list[tuple[str, Any]] = [("BITS", bits), ("GROUP", group_size)]
    if x.dtype == mx.float32:
        at_once = FLOAT_ROWS[0] if rows == 1 else FLOAT_ROWS[1]
        source, threads = _FLOAT, 32 * FLOAT_WARPS
        template += [("ROWS_AT_ONCE", at_once), ("S", scales.dtype)]
        blocks = (-(-columns // FLOAT_WARPS), -(-rows // at_once))
    else:
        launch = half_launch(rows, columns, bits)
        source, threads, blocks = _half_source(launch, bits), 32 * launch.warps, launch.blocks(rows, columns)
        template += _half_template(launch, x.dtype, size)
    return build(source)(
        inputs=[x, weights, scales, biases, integers(rows, size, columns)],
        template=template,
        grid=(blocks[0] * threads, blocks[1], 1),
        threadgroup=(threads, 1, 1),
        output_shapes=[(rows, columns)],
        output_dtypes=[x.dtype],
    )[0]


def _half_source(launch: StreamLaunch | BlockLaunch, bits: int) -> KernelSource:
    return _STREAM if isinstance(launch, StreamLaunch) else _block_source(launch.shared_bytes(bits))


def _half_template(launch: StreamLaunch | BlockLaunch, dtype: mx.Dtype, size: int) -> list[tuple[str, Any]]:
    template: list[tuple[str, Any]] = [
        ("T", dtype),
        ("TILES", launch.tiles),
        ("ROW_TILES", launch.row_tiles),
        ("SLICE_STEPS", slice_steps(size)),
        ("WARPS", launch.warps),
    ]
    return template if isinstance(launch, StreamLaunch) else [*template, ("STAGES", launch.stages)]
