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

from engine.kernels.invariant.layout import BLOCK_COLUMNS, LANES
from engine.kernels.invariant.vectors import (
    F32,
    I8,
    I32,
    I64,
    VECTOR,
    CountedLoop,
    addresses,
    constant_lanes,
    fused,
    load,
    shuffle,
    splat,
    store,
    sum_lanes,
    with_one_nan,
)

I16 = ir.IntType(16)
SMALLEST_GROUP = 32


RISING = tuple(range(LANES))


def words_order(bits: int) -> tuple[int, ...]:
    """The order of lanes that costs least to unpack: packed words lie in the lanes in turn, as a broadcast leaves them.

    Lane `i` of the registers holds lane `words_order(bits)[i]` of the expression.
    """
    words, per_word = LANES * bits // 32, 32 // bits
    return tuple(lane % words * per_word + lane // words for lane in range(LANES))


def _shifted_words(builder: ir.IRBuilder, address: ir.Value, bits: int, order: tuple[int, ...]) -> ir.Value:
    """Sixteen lanes, each its value of 2, 4 or 8 bits in the low bits and others above: <16 x i32>."""
    words, per_word = LANES * bits // 32, 32 // bits
    packed = load(builder, address, ir.VectorType(I32, words) if words > 1 else I32, 4)
    if words == 1:
        spread = splat(builder, packed)
    else:
        spread = shuffle(builder, packed, packed, [lane // per_word for lane in order])
    return builder.lshr(spread, constant_lanes(I32, [lane % per_word * bits for lane in order]))


def _integers_by_word(builder: ir.IRBuilder, address: ir.Value, bits: int, order: tuple[int, ...]) -> ir.Value:
    """Sixteen values of 2, 4 or 8 bits, none of which crosses a 32-bit word: <16 x i32>."""
    mask = constant_lanes(I32, [(1 << bits) - 1] * LANES)
    return builder.and_(_shifted_words(builder, address, bits, order), mask)


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


def _has_avx512(context: Any) -> bool:
    return "+avx512f" in context.codegen().magic_tuple()[2].split(",")


class _Group:
    """The scale and bias of one group, ready to turn packed values into weights.

    Four-bit values are looked up by register permutation where AVX-512 has one: the sixteen possible weights are
    computed once, with the same two roundings as arithmetic on each value, and a permutation ignores all but the
    four low bits of an index, so no mask is needed.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder, bits: int, scale_at: ir.Value, bias_at: ir.Value) -> None:
        self._builder, self._bits = builder, bits
        self._scale = splat(builder, load(builder, scale_at, F32, 4))
        self._bias = splat(builder, load(builder, bias_at, F32, 4))
        self._table: ir.Value | None = None
        if bits == 4 and _has_avx512(context):
            self._table = self._by_arithmetic(constant_lanes(I32, list(range(LANES))))

    def weights(self, address: ir.Value, order: tuple[int, ...] = RISING) -> ir.Value:
        """The sixteen weights packed at `address`, in the given order of lanes."""
        builder, bits = self._builder, self._bits
        if self._table is not None:
            name, indices = "llvm.x86.avx512.permvar.sf.512", ir.VectorType(I32, LANES)
            permute = builder.module.globals.get(name) or ir.Function(
                builder.module, ir.FunctionType(VECTOR, [VECTOR, indices]), name
            )
            return builder.call(permute, [self._table, _shifted_words(builder, address, bits, order)])
        if 32 % bits == 0:
            return self._by_arithmetic(_integers_by_word(builder, address, bits, order))
        return self._by_arithmetic(_integers_by_byte(builder, address, bits))

    def _by_arithmetic(self, integers: ir.Value) -> ir.Value:
        builder = self._builder
        return builder.fadd(builder.fmul(builder.sitofp(integers, VECTOR), self._scale), self._bias)


def make_unpack_affine(bits: int) -> Any:
    """`f(packed, scales, biases, group_shift, size, out)`: one row of `size` affine weights to f32.

    `packed`, `scales`, `biases` (f32) and `out` (f32) are addresses; the group size is `1 << group_shift`, at least 32,
    and `size` is a multiple of it.
    """

    @intrinsic
    def unpack_affine(typing: Any, packed: Any, scales: Any, biases: Any, group_shift: Any, size: Any, out: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            packed, scales, biases, group_shift, size, out = arguments
            loop = CountedLoop(builder, size, SMALLEST_GROUP, [])
            place = builder.shl(builder.lshr(loop.index, group_shift), I64(2))
            group = _Group(context, builder, bits, builder.add(scales, place), builder.add(biases, place))
            for first in range(0, SMALLEST_GROUP, LANES):
                element = builder.add(loop.index, I64(first))
                weights = group.weights(builder.add(packed, _byte_of(builder, element, bits)))
                store(builder, weights, builder.add(out, builder.shl(element, I64(2))))
            loop.close([])
            return context.get_dummy_value()

        return addresses(6), generate

    return unpack_affine


def make_dot_packed(bits: int, rows: int) -> Any:
    """`f(x, x_stride, packed, row_bytes, scales, biases, group_bytes, group_shift, size, out, out_stride)`.

    `rows` rows by four packed columns: the same sums as unpacking the columns and multiplying them, without the trip
    through memory, which for few rows is most of the time. Row `r` starts at `x + r * x_stride`, its elements in
    `words_order(bits)` within each sixteen; column `c` at `packed + c * row_bytes`, its f32 scales at
    `scales + c * group_bytes`; four f32 sums go to `out + r * out_stride`.
    """
    order = words_order(bits)

    @intrinsic
    def dot_packed(
        typing: Any,
        x: Any,
        x_stride: Any,
        packed: Any,
        row_bytes: Any,
        scales: Any,
        biases: Any,
        group_bytes: Any,
        group_shift: Any,
        size: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            x, x_stride, packed, row_bytes, scales, biases, group_bytes, group_shift, size, out, out_stride = arguments
            rows_at = [builder.add(x, builder.mul(x_stride, I64(r))) for r in range(rows)]
            columns = [builder.add(packed, builder.mul(row_bytes, I64(c))) for c in range(BLOCK_COLUMNS)]
            offsets = [builder.mul(group_bytes, I64(c)) for c in range(BLOCK_COLUMNS)]
            zero = ir.Constant(VECTOR, [0.0] * LANES)
            loop = CountedLoop(builder, size, SMALLEST_GROUP, [zero] * (rows * BLOCK_COLUMNS))
            place = builder.shl(builder.lshr(loop.index, group_shift), I64(2))
            elements = [builder.add(loop.index, I64(first)) for first in range(0, SMALLEST_GROUP, LANES)]
            groups = [
                _Group(context, builder, bits, builder.add(scales, at), builder.add(biases, at))
                for at in (builder.add(place, offset) for offset in offsets)
            ]
            sums = list(loop.carried)
            for element in elements:
                at = builder.shl(element, I64(2))
                values = [load(builder, builder.add(row, at), VECTOR, 4) for row in rows_at]
                for c, (column, group) in enumerate(zip(columns, groups, strict=True)):
                    weights = group.weights(builder.add(column, _byte_of(builder, element, bits)), order)
                    for r, value in enumerate(values):
                        index = r * BLOCK_COLUMNS + c
                        sums[index] = builder.call(fused(builder), [value, weights, sums[index]])
            loop.close(sums)
            for r in range(rows):
                own = list(loop.carried[r * BLOCK_COLUMNS : (r + 1) * BLOCK_COLUMNS])
                finished = with_one_nan(builder, sum_lanes(builder, own, order))
                store(builder, finished, builder.add(out, builder.mul(out_stride, I64(r))))
            return context.get_dummy_value()

        return addresses(11), generate

    return dot_packed


def _byte_of(builder: ir.IRBuilder, element: ir.Value, bits: int) -> ir.Value:
    return builder.lshr(builder.mul(element, I64(bits)), I64(3))


def make_reorder(bits: int) -> Any:
    """`f(source, size, out)`: `size` f32 values, a multiple of 16, each sixteen put into `words_order(bits)`."""
    order = list(words_order(bits))

    @intrinsic
    def reorder(typing: Any, source: Any, size: Any, out: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            source, size, out = arguments
            loop = CountedLoop(builder, size, LANES, [])
            offset = builder.shl(loop.index, I64(2))
            values = load(builder, builder.add(source, offset), VECTOR, 4)
            store(builder, shuffle(builder, values, values, order), builder.add(out, offset))
            loop.close([])
            return context.get_dummy_value()

        return addresses(3), generate

    return reorder


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
