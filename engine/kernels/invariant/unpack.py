"""Weights of any stored format to f32, sixteen at a time. Must not know dot products or threads.

MLX's affine layout: value `i` of a row occupies bits `i * bits .. (i + 1) * bits` of the row's little-endian bit
stream, for every width; the weight is `scale * value + bias` with one scale and bias per group, rounded after the
product and again after the sum.
"""

# numba reads the argument names of an intrinsic and hands their values to `generate`.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.extending import intrinsic

from engine.kernels.invariant.layout import LANES
from engine.kernels.invariant.vectors import (
    F32,
    I8,
    I32,
    I64,
    VECTOR,
    CountedLoop,
    addresses,
    constant_lanes,
    load,
    shuffle,
    splat,
    store,
)

I16 = ir.IntType(16)
SMALLEST_GROUP = 32


def _integers_by_word(builder: ir.IRBuilder, address: ir.Value, bits: int) -> ir.Value:
    """Sixteen values of 2, 4 or 8 bits, none of which crosses a 32-bit word: <16 x i32>."""
    words, per_word = LANES * bits // 32, 32 // bits
    packed = load(builder, address, ir.VectorType(I32, words) if words > 1 else I32, 4)
    if words == 1:
        spread = splat(builder, packed)
    else:
        spread = shuffle(builder, packed, packed, [lane // per_word for lane in range(LANES)])
    shifts = constant_lanes(I32, [lane % per_word * bits for lane in range(LANES)])
    return builder.and_(builder.lshr(spread, shifts), constant_lanes(I32, [(1 << bits) - 1] * LANES))


def _integers_by_byte(builder: ir.IRBuilder, address: ir.Value, bits: int) -> ir.Value:
    """Sixteen values of 3, 5 or 6 bits, each within two neighbouring bytes: <16 x i32>."""
    size = LANES * bits // 8
    packed = load(builder, address, ir.VectorType(I8, size), 1)
    pairs: list[int] = []
    for lane in range(LANES):
        first = lane * bits // 8
        pairs += [first, min(first + 1, size - 1)]
    halves = builder.bitcast(shuffle(builder, packed, packed, pairs), ir.VectorType(I16, LANES))
    shifts = constant_lanes(I16, [lane * bits % 8 for lane in range(LANES)])
    masked = builder.and_(builder.lshr(halves, shifts), constant_lanes(I16, [(1 << bits) - 1] * LANES))
    return builder.zext(masked, ir.VectorType(I32, LANES))


def make_unpack_affine(bits: int) -> Any:
    """`f(packed, scales, biases, group_shift, size, out)`: one row of `size` affine weights to f32.

    `packed`, `scales`, `biases` (f32) and `out` (f32) are addresses; the group size is `1 << group_shift`, at least 32,
    and `size` is a multiple of it.
    """
    integers = _integers_by_word if 32 % bits == 0 else _integers_by_byte

    @intrinsic
    def unpack_affine(
        typing: Any, packed: Any, scales: Any, biases: Any, group_shift: Any, size: Any, out: Any
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            packed, scales, biases, group_shift, size, out = arguments
            loop = CountedLoop(builder, size, SMALLEST_GROUP, [])
            group = builder.shl(builder.lshr(loop.index, group_shift), I64(2))
            scale = splat(builder, load(builder, builder.add(scales, group), F32, 4))
            bias = splat(builder, load(builder, builder.add(biases, group), F32, 4))
            for first in range(0, SMALLEST_GROUP, LANES):
                at = builder.lshr(builder.mul(builder.add(loop.index, I64(first)), I64(bits)), I64(3))
                values = builder.sitofp(integers(builder, builder.add(packed, at), bits), VECTOR)
                weights = builder.fadd(builder.fmul(values, scale), bias)
                place = builder.shl(builder.add(loop.index, I64(first)), I64(2))
                store(builder, weights, builder.add(out, place))
            loop.close([])
            return context.get_dummy_value()

        return addresses(6), generate

    return unpack_affine


@intrinsic
def widen_f16(typing: Any, source: Any, size: Any, out: Any) -> Any:
    """`size` f16 values (a multiple of 16) at address `source` to f32 at address `out`; exact."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        source, size, out = arguments
        loop = CountedLoop(builder, size, LANES, [])
        at = builder.add(source, builder.shl(loop.index, I64(1)))
        values = load(builder, at, ir.VectorType(ir.HalfType(), LANES), 2)
        store(builder, builder.fpext(values, VECTOR), builder.add(out, builder.shl(loop.index, I64(2))))
        loop.close([])
        return context.get_dummy_value()

    return addresses(3), generate
