"""Vector instructions written out, so that no compiler may choose the order of a sum. Must not know layers or pages.

A dot product here is always the same expression: sixteen partial sums, lane `l` taking elements `l`, `l + 16`, ... in
rising order by fused multiply-add, then halved by adding lane `l` and lane `l + width / 2` until one is left. Blocks of
rows and columns only run several such expressions side by side. No fast-math flag is set anywhere, and every
operation used is correctly rounded by IEEE 754, so block shape, vector width and processor do not show in the result.

Everything takes addresses and sizes as integers: numba calls these with `array.ctypes.data`.
"""

# numba reads the argument names of an intrinsic and hands their values to `generate`.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import types
from numba.extending import intrinsic

from engine.kernels.invariant.layout import BLOCK_COLUMNS, LANES

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)
F32 = ir.FloatType()
VECTOR = ir.VectorType(F32, LANES)
_CANONICAL_NAN = 0x7FC00000


def pointer(builder: ir.IRBuilder, address: ir.Value, target: ir.Type) -> ir.Value:
    return builder.inttoptr(address, target.as_pointer())


def load(builder: ir.IRBuilder, address: ir.Value, target: ir.Type, align: int) -> ir.Value:
    return builder.load(pointer(builder, address, target), align=align, typ=target)


def store(builder: ir.IRBuilder, value: ir.Value, address: ir.Value, align: int = 4) -> None:
    builder.store(value, pointer(builder, address, value.type), align=align)


def constant_lanes(element: ir.Type, values: list[int]) -> ir.Constant:
    return ir.Constant(ir.VectorType(element, len(values)), values)


def shuffle(builder: ir.IRBuilder, first: ir.Value, second: ir.Value, lanes: list[int]) -> ir.Value:
    return builder.shuffle_vector(first, second, constant_lanes(I32, lanes))


def splat(builder: ir.IRBuilder, scalar: ir.Value, lanes: int = LANES) -> ir.Value:
    vector = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    vector = builder.insert_element(vector, scalar, I32(0))
    return shuffle(builder, vector, vector, [0] * lanes)


class CountedLoop:
    """A counted loop under construction: `index` runs from 0 by `step` while below `limit`, with carried values."""

    def __init__(self, builder: ir.IRBuilder, limit: ir.Value, step: int, carried: list[ir.Value]) -> None:
        self._builder, self._step = builder, step
        entry = builder.block
        self._head = builder.append_basic_block("head")
        self._body = builder.append_basic_block("body")
        self._end = builder.append_basic_block("end")
        builder.branch(self._head)
        builder.position_at_end(self._head)
        self.index = builder.phi(I64)
        self.index.add_incoming(I64(0), entry)
        self.carried = [builder.phi(value.type) for value in carried]
        for phi, value in zip(self.carried, carried, strict=True):
            phi.add_incoming(value, entry)
        builder.cbranch(builder.icmp_signed("<", self.index, limit), self._body, self._end)
        builder.position_at_end(self._body)

    def close(self, carried: list[ir.Value]) -> None:
        """End the body with the carried values of the next round; code continues after the loop."""
        builder = self._builder
        self.index.add_incoming(builder.add(self.index, I64(self._step)), builder.block)
        for phi, value in zip(self.carried, carried, strict=True):
            phi.add_incoming(value, builder.block)
        builder.branch(self._head)
        builder.position_at_end(self._end)


def sum_lanes(builder: ir.IRBuilder, sums: list[ir.Value], order: tuple[int, ...] = tuple(range(LANES))) -> ir.Value:
    """Halve each vector of partial sums down to one lane; result `i` is the sum of `sums[i]`.

    Vectors are packed side by side to keep the adders busy. The tree of every single sum stays the same, wherever its
    lanes lie: `order` names the lane of the expression that each lane of the registers holds.
    """
    width = LANES
    packed, held = sums, 1
    places = [order.index(lane) for lane in range(LANES)]
    while width > 1:
        half = width // 2
        joined = 2 if len(packed) > 1 else 1
        low = [part * width + places[lane] for part in range(held * joined) for lane in range(half)]
        high = [part * width + places[lane + half] for part in range(held * joined) for lane in range(half)]
        pairs = [packed[i : i + joined] for i in range(0, len(packed), joined)]
        packed = [builder.fadd(shuffle(builder, p[0], p[-1], low), shuffle(builder, p[0], p[-1], high)) for p in pairs]
        held, width, places = held * joined, half, list(range(half))
    return packed[0]


def with_one_nan(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """Give every NaN the same bits: which operand's payload survives is the processor's choice, not ours."""
    lanes = value.type.count
    bits = ir.Constant(ir.VectorType(I32, lanes), [_CANONICAL_NAN] * lanes)
    return builder.select(builder.fcmp_unordered("uno", value, value), builder.bitcast(bits, value.type), value)


def fused(builder: ir.IRBuilder) -> ir.Function:
    name = f"llvm.fma.v{LANES}f32"
    return builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(VECTOR, [VECTOR] * 3), name)


def _dot_block_body(
    builder: ir.IRBuilder, rows: int, left: list[ir.Value], right: list[ir.Value], size: ir.Value
) -> list[ir.Value]:
    """One vector of four finished sums per row: element `c` is left[row] . right[c] over `size` f32 elements."""
    zero = ir.Constant(VECTOR, [0.0] * LANES)
    sums = _partial_sums(builder, left, right, size, [zero] * (rows * BLOCK_COLUMNS))
    return _finished_sums(builder, rows, sums)


def _partial_sums(
    builder: ir.IRBuilder, left: list[ir.Value], right: list[ir.Value], size: ir.Value, sums: list[ir.Value]
) -> list[ir.Value]:
    """The partial sums after `size` more elements, row by row: left[row] by right[column]."""
    fma = fused(builder)
    loop = CountedLoop(builder, size, LANES, sums)
    offset = builder.shl(loop.index, I64(2))
    columns = [load(builder, builder.add(address, offset), VECTOR, 4) for address in right]
    sums = []
    for row, address in enumerate(left):
        values = load(builder, builder.add(address, offset), VECTOR, 4)
        for column, weights in enumerate(columns):
            sums.append(builder.call(fma, [values, weights, loop.carried[row * BLOCK_COLUMNS + column]]))
    loop.close(sums)
    return list(loop.carried)


def _finished_sums(builder: ir.IRBuilder, rows: int, sums: list[ir.Value]) -> list[ir.Value]:
    per_row = [sums[i : i + BLOCK_COLUMNS] for i in range(0, rows * BLOCK_COLUMNS, BLOCK_COLUMNS)]
    return [with_one_nan(builder, sum_lanes(builder, list(row))) for row in per_row]


def addresses(count: int) -> Any:
    return types.void(*([types.intp] * count))


def make_dot_block(rows: int) -> Any:
    """A block of `rows` x 4 dot products: `f(left, left_stride, right, right_stride, size, out, out_stride)`.

    Row `r` of `left` starts at `left + r * left_stride` bytes, column `c` of `right` likewise; `size` is in f32
    elements and a multiple of 16. Four f32 sums are stored at `out + r * out_stride`.
    """

    @intrinsic
    def dot_block(
        typing: Any,
        left: Any,
        left_stride: Any,
        right: Any,
        right_stride: Any,
        size: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            left, left_stride, right, right_stride, size, out, out_stride = arguments
            rows_at = [builder.add(left, builder.mul(left_stride, I64(r))) for r in range(rows)]
            columns_at = [builder.add(right, builder.mul(right_stride, I64(c))) for c in range(BLOCK_COLUMNS)]
            for row, sums in enumerate(_dot_block_body(builder, rows, rows_at, columns_at, size)):
                store(builder, sums, builder.add(out, builder.mul(out_stride, I64(row))))
            return context.get_dummy_value()

        return addresses(7), generate

    return dot_block


def make_dot_part(rows: int) -> Any:
    """`f(left, left_stride, right, right_stride, size, sums, start)`: more elements of a block's dot products.

    As `make_dot_block`, but the partial sums (`rows` x 4 vectors) are taken from address `sums` (zeros when `start` is
    0) and put back there: a long row can be taken in parts that stay in the nearest cache, and the sums are the same.
    """

    @intrinsic
    def dot_part(
        typing: Any, left: Any, left_stride: Any, right: Any, right_stride: Any, size: Any, sums: Any, start: Any
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            left, left_stride, right, right_stride, size, sums, start = arguments
            rows_at = [builder.add(left, builder.mul(left_stride, I64(r))) for r in range(rows)]
            columns_at = [builder.add(right, builder.mul(right_stride, I64(c))) for c in range(BLOCK_COLUMNS)]
            places = [builder.add(sums, I64(4 * LANES * i)) for i in range(rows * BLOCK_COLUMNS)]
            zero, is_first = ir.Constant(VECTOR, [0.0] * LANES), builder.icmp_signed("==", start, I64(0))
            before = [builder.select(is_first, zero, load(builder, place, VECTOR, 4)) for place in places]
            after = _partial_sums(builder, rows_at, columns_at, size, before)
            for value, place in zip(after, places, strict=True):
                store(builder, value, place)
            return context.get_dummy_value()

        return addresses(7), generate

    return dot_part


def make_dot_finish(rows: int) -> Any:
    """`f(sums, out, out_stride)`: halve a block's partial sums as `make_dot_block` does, and store the results."""

    @intrinsic
    def dot_finish(typing: Any, sums: Any, out: Any, out_stride: Any) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            sums, out, out_stride = arguments
            vectors = [
                load(builder, builder.add(sums, I64(4 * LANES * i)), VECTOR, 4) for i in range(rows * BLOCK_COLUMNS)
            ]
            for row, finished in enumerate(_finished_sums(builder, rows, vectors)):
                store(builder, finished, builder.add(out, builder.mul(out_stride, I64(row))))
            return context.get_dummy_value()

        return addresses(3), generate

    return dot_finish


def make_dot_block_indexed(rows: int) -> Any:
    """As `make_dot_block`, column `c` at `right + index[c] * right_stride`; `index` is the address of four int32."""

    @intrinsic
    def dot_block_indexed(
        typing: Any,
        left: Any,
        left_stride: Any,
        right: Any,
        right_stride: Any,
        index: Any,
        size: Any,
        out: Any,
        out_stride: Any,
    ) -> Any:
        def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
            left, left_stride, right, right_stride, index, size, out, out_stride = arguments
            rows_at = [builder.add(left, builder.mul(left_stride, I64(r))) for r in range(rows)]
            slots = [load(builder, builder.add(index, I64(4 * c)), I32, 4) for c in range(BLOCK_COLUMNS)]
            columns_at = [builder.add(right, builder.mul(right_stride, builder.sext(slot, I64))) for slot in slots]
            for row, sums in enumerate(_dot_block_body(builder, rows, rows_at, columns_at, size)):
                store(builder, sums, builder.add(out, builder.mul(out_stride, I64(row))))
            return context.get_dummy_value()

        return addresses(8), generate

    return dot_block_indexed
