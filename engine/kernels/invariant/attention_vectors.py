"""Vector instructions of attention: scaled maximum, exponential, sum, weighted sum of value rows. Must not know pages.

All work on scores padded to whole vectors of sixteen, lane `l` holding keys `l`, `l + 16`, ... The order of every sum
follows from the number of keys alone.
"""

# numba reads the argument names of an intrinsic and hands their values to `generate`.
# ruff: noqa: ARG001

from __future__ import annotations

import math
from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import types
from numba.extending import intrinsic

from engine.kernels.invariant.layout import LANES
from engine.kernels.invariant.vectors import (
    F32,
    I32,
    I64,
    VECTOR,
    CountedLoop,
    addresses,
    constant_lanes,
    fused,
    load,
    splat,
    store,
    sum_lanes,
    with_one_nan,
)

# 1.5 * 2^23: adding it leaves the nearest whole number in the low mantissa bits.
ROUND_TO_WHOLE = 12582912.0
LOWEST_EXPONENT = -87.0
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440054690583e-4
EXP_TERMS = 8


def _constant(value: float) -> ir.Constant:
    return ir.Constant(VECTOR, [value] * LANES)


def _exponential(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """e^x for x <= 0, lane by lane: 2^n times a polynomial of the rest; 0 below -87, NaN for NaN."""
    fma = fused(builder)
    shifted = builder.call(fma, [x, _constant(1.0 / math.log(2.0)), _constant(ROUND_TO_WHOLE)])
    whole = builder.fsub(shifted, _constant(ROUND_TO_WHOLE))
    rest = builder.call(fma, [whole, _constant(-LN2_HIGH), x])
    rest = builder.call(fma, [whole, _constant(-LN2_LOW), rest])
    result = _constant(1.0 / math.factorial(EXP_TERMS - 1))
    for term in range(EXP_TERMS - 2, -1, -1):
        result = builder.call(fma, [result, rest, _constant(1.0 / math.factorial(term))])
    integer = ir.VectorType(I32, LANES)
    exponent = builder.shl(builder.bitcast(shifted, integer), constant_lanes(I32, [23] * LANES))
    power = builder.bitcast(builder.add(exponent, constant_lanes(I32, [127 << 23] * LANES)), VECTOR)
    tiny = builder.fcmp_ordered("<", x, _constant(LOWEST_EXPONENT))
    return builder.select(tiny, _constant(0.0), builder.fmul(result, power))


@intrinsic
def scaled_maximum(typing: Any, scores: Any, size: Any, scale: Any, floor: Any) -> Any:
    """Multiply `size` scores (a multiple of 16) at an address by `scale` in place; the largest of them and `floor`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, size, scale, floor = arguments
        scales = splat(builder, scale)
        loop = CountedLoop(builder, size, LANES, [splat(builder, floor)])
        at = builder.add(scores, builder.shl(loop.index, I64(2)))
        value = builder.fmul(load(builder, at, VECTOR, 4), scales)
        store(builder, value, at)
        larger = builder.fcmp_ordered(">", value, loop.carried[0])
        loop.close([builder.select(larger, value, loop.carried[0])])
        largest = builder.extract_element(loop.carried[0], I32(0))
        for lane in range(1, LANES):
            value = builder.extract_element(loop.carried[0], I32(lane))
            largest = builder.select(builder.fcmp_ordered(">", value, largest), value, largest)
        return largest

    return types.float32(types.intp, types.intp, types.float32, types.float32), generate


@intrinsic
def exponentiate(typing: Any, scores: Any, size: Any, largest: Any) -> Any:
    """Replace `size` scores (a multiple of 16) at an address by e^(score - largest); their sum."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        scores, size, largest = arguments
        shift = splat(builder, largest)
        loop = CountedLoop(builder, size, LANES, [_constant(0.0)])
        at = builder.add(scores, builder.shl(loop.index, I64(2)))
        value = _exponential(builder, builder.fsub(load(builder, at, VECTOR, 4), shift))
        store(builder, value, at)
        loop.close([builder.fadd(loop.carried[0], value)])
        return builder.extract_element(sum_lanes(builder, [loop.carried[0]]), I32(0))

    return types.float32(types.intp, types.intp, types.float32), generate


def make_weighted_sum(rows: int, vectors: int) -> Any:
    """`f(weights, weights_stride, values, values_stride, slots, count, totals, totals_stride, out, out_stride)`.

    For each of `rows` heads: sum over keys `j` in rising order of `weights[j]` times sixteen-lane vectors
    `0 .. vectors` of the value row at `values + slots[j] * values_stride`, then divided by the f32 at
    `totals + row * totals_stride`. `slots` is the address of `count` int32.
    """

    @intrinsic
    def weighted_sum(
        typing: Any,
        weights: Any,
        weights_stride: Any,
        values: Any,
        values_stride: Any,
        slots: Any,
        count: Any,
        totals: Any,
        totals_stride: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            weights, weights_stride, values, values_stride, slots, count = arguments[:6]
            totals, totals_stride, out, out_stride = arguments[6:]
            fma = fused(builder)
            loop = CountedLoop(builder, count, 1, [_constant(0.0)] * (rows * vectors))
            offset = builder.shl(loop.index, I64(2))
            slot = builder.sext(load(builder, builder.add(slots, offset), I32, 4), I64)
            value_row = builder.add(values, builder.mul(slot, values_stride))
            parts = [load(builder, builder.add(value_row, I64(64 * v)), VECTOR, 4) for v in range(vectors)]
            sums = []
            for row in range(rows):
                at = builder.add(builder.add(weights, builder.mul(weights_stride, I64(row))), offset)
                weight = splat(builder, load(builder, at, F32, 4))
                for v, part in enumerate(parts):
                    sums.append(builder.call(fma, [weight, part, loop.carried[row * vectors + v]]))
            loop.close(sums)
            for row in range(rows):
                total = builder.add(totals, builder.mul(totals_stride, I64(row)))
                divisor = splat(builder, load(builder, total, F32, 4))
                target = builder.add(out, builder.mul(out_stride, I64(row)))
                for v in range(vectors):
                    mean = builder.fdiv(loop.carried[row * vectors + v], divisor)
                    store(builder, with_one_nan(builder, mean), builder.add(target, I64(64 * v)))
            return context.get_dummy_value()

        return addresses(10), generate

    return weighted_sum
