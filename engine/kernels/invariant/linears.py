"""Row-invariant linears on CPU: dense f32, f16, bf16 and MLX's packed affine weights. Must not know policies or models.

Contract: the bits of an output row depend on its own input row, the weights and the bias, on nothing else: not the
number of rows, the row's index, what the other rows hold, the number of threads or the processor's vector width.
Packed and dense weights of equal value give equal bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError
from engine.kernels.invariant.layout import (
    BF16_STORED,
    F16_STORED,
    F32_STORED,
    LANES,
    WeightLayout,
)
from engine.kernels.invariant.runtime import block_rows, checked_threads, require_numba

AFFINE_BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (32, 64, 128)
STORED_TYPES = {"float32": F32_STORED, "float16": F16_STORED, "uint16": BF16_STORED}

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class LinearWeights:
    """Weights checked once and ready for many calls; `arrays` keeps the memory behind the layout's addresses alive.

    `table` holds the layout's integers (int64) at `table_address`; `padded_size` is the input size in whole vectors.
    """

    layout: WeightLayout
    arrays: tuple[Array, ...]
    table: Array
    table_address: int
    padded_size: int


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _prepared(layout: WeightLayout, arrays: tuple[Array, ...]) -> LinearWeights:
    table = np.array(layout, np.int64)
    padded_size = -(-layout.input_size // LANES) * LANES
    return LinearWeights(layout, arrays, table, _address(table), padded_size)


def _stored_type(array: Array, what: str) -> int:
    try:
        return STORED_TYPES[array.dtype.name]
    except KeyError:
        raise EngineError(
            f"The invariant linear cannot read {what} of type {array.dtype};"
            " give float32, float16, or bfloat16 as uint16."
        ) from None


def _checked_bias(bias: Array | None, output_size: int) -> Array | None:
    if bias is None:
        return None
    if bias.shape != (output_size,):
        raise EngineError(
            f"The invariant linear got a bias of shape {bias.shape} for {output_size} outputs; give ({output_size},)."
        )
    if bias.dtype == np.uint16:
        bias = (bias.astype(np.uint32) << 16).view(np.float32)
    return np.ascontiguousarray(bias, np.float32)


def dense_weights(weight: Array, bias: Array | None = None) -> LinearWeights:
    """Prepare dense weights (N, K): float32, float16, or bfloat16 bits as uint16; bias (N,) likewise.

    Raises:
        EngineError: wrong shape or type.
    """
    if weight.ndim != 2 or 0 in weight.shape:
        raise EngineError(f"The invariant linear needs weights of shape (N, K), not {weight.shape}.")
    weight = np.ascontiguousarray(weight)
    stored = _stored_type(weight, "weights")
    output_size, input_size = weight.shape
    wide_bias = _checked_bias(bias, output_size)
    layout = WeightLayout(
        weights=_address(weight),
        scales=0,
        biases=0,
        bias=0 if wide_bias is None else _address(wide_bias),
        bits=0,
        stored=stored,
        group_shift=5,
        row_bytes=input_size * weight.itemsize,
        input_size=input_size,
        output_size=output_size,
    )
    return _prepared(layout, (weight,) if wide_bias is None else (weight, wide_bias))


def affine_weights(
    packed: Array, scales: Array, biases: Array, *, bits: int, group_size: int, bias: Array | None = None
) -> LinearWeights:
    """Prepare MLX affine weights: packed uint32 (N, K * bits / 32), scales and biases (N, K / group_size); bias (N,).

    Scales and biases are both float32, float16, or bfloat16 bits as uint16. Nothing is unpacked here.

    Raises:
        EngineError: a width, group size, shape or type that the kernel does not read.
    """
    if bits not in AFFINE_BITS or group_size not in GROUP_SIZES:
        raise EngineError(
            f"The invariant linear reads affine weights of {AFFINE_BITS} bits in groups of {GROUP_SIZES},"
            f" not {bits} bits in groups of {group_size}."
        )
    if packed.ndim != 2 or packed.dtype != np.uint32:
        raise EngineError(
            f"The invariant linear needs packed weights as a 2-d uint32 array, not {packed.ndim}-d {packed.dtype}."
        )
    output_size, input_size = packed.shape[0], packed.shape[1] * 32 // bits
    wanted = (output_size, input_size // group_size)
    if (
        input_size % group_size
        or 0 in wanted
        or scales.shape != wanted
        or biases.shape != wanted
        or scales.dtype != biases.dtype
    ):
        raise EngineError(
            f"The invariant linear got scales {scales.dtype} {scales.shape} and biases {biases.dtype} {biases.shape}"
            f" for packed weights {packed.shape}; both must be {wanted} and of one type."
        )
    packed, scales, biases = (np.ascontiguousarray(array) for array in (packed, scales, biases))
    wide_bias = _checked_bias(bias, output_size)
    layout = WeightLayout(
        weights=_address(packed),
        scales=_address(scales),
        biases=_address(biases),
        bias=0 if wide_bias is None else _address(wide_bias),
        bits=bits,
        stored=_stored_type(scales, "scales"),
        group_shift=group_size.bit_length() - 1,
        row_bytes=packed.shape[1] * 4,
        input_size=input_size,
        output_size=output_size,
    )
    arrays = (packed, scales, biases)
    return _prepared(layout, arrays if wide_bias is None else (*arrays, wide_bias))


@cache
def _compiled() -> Callable[[Array, int, Array, int, int], None]:
    require_numba()
    from engine.kernels.invariant.linear_loops import multiply_arrays

    compiled: Callable[[Array, int, Array, int, int], None] = multiply_arrays
    return compiled


def _padded_rows(x: Array, weights: LinearWeights) -> Array:
    input_size = weights.layout.input_size
    if x.ndim != 2 or x.shape[1] != input_size:
        raise EngineError(
            f"The invariant linear got rows of shape {x.shape} for {input_size} inputs; give (M, {input_size})."
        )
    if x.dtype == np.float32 and weights.padded_size == input_size and x.flags.c_contiguous:
        return x
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    if weights.padded_size == input_size:
        return np.ascontiguousarray(x, np.float32)
    padded = np.zeros((x.shape[0], weights.padded_size), np.float32)
    padded[:, :input_size] = x
    return padded


def linear(
    x: Array, weights: LinearWeights, *, threads: int | None = None, most_block_rows: int | None = None
) -> npt.NDArray[np.float32]:
    """Multiply rows x (M, K), float32, float16 or bfloat16 as uint16, by prepared weights: (M, N) float32.

    `threads` (None: all) and `most_block_rows` (None: what suits the processor) change the time and never the bits.

    Raises:
        EngineError: numba is missing, or the shape does not fit.
    """
    multiply = _compiled()
    x = _padded_rows(x, weights)
    out = np.empty((x.shape[0], weights.layout.output_size), np.float32)
    multiply(x, weights.table_address, out, checked_threads(threads), most_block_rows or block_rows())
    return out


def linear_dense(x: Array, weight: Array, bias: Array | None = None) -> npt.NDArray[np.float32]:
    """x (M, K) by dense weight (N, K), plus bias (N,): (M, N) float32; types as in `dense_weights` and `linear`."""
    return linear(x, dense_weights(weight, bias))


def linear_affine(
    x: Array,
    packed: Array,
    scales: Array,
    biases: Array,
    *,
    bits: int,
    group_size: int,
    bias: Array | None = None,
) -> npt.NDArray[np.float32]:
    """x (M, K) by MLX affine weights, plus bias (N,): (M, N) float32; types as in `affine_weights` and `linear`."""
    return linear(x, affine_weights(packed, scales, biases, bits=bits, group_size=group_size, bias=bias))
