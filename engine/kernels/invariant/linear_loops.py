"""The compiled loops of the invariant linears: columns over threads, rows over blocks. Must not know policies.

Each output is finished by one call of one dot block, whatever block and thread that is. Weights are widened four
columns at a time into a buffer of the first-level cache and used for all rows of a panel.
numba keeps compiled code beside this file and checks only this file's time stamp: after an edit of `vectors`
or `unpack`, remove `__pycache__`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, types

from engine.kernels.invariant.layout import (
    BLOCK_COLUMNS,
    F16_STORED,
    F32_STORED,
    LANES,
    RowsLayout,
    WeightLayout,
)
from engine.kernels.invariant.scalars import load_bf16, load_f16, load_f32, load_i64, store_f32
from engine.kernels.invariant.unpack import make_dot_packed, make_reorder, make_unpack_affine, widen_f16
from engine.kernels.invariant.vectors import make_dot_block, make_dot_finish, make_dot_part

SERIAL_PRODUCTS = 60_000
PANEL_BYTES = 512 * 1024
MOST_UNPARTED = 1024
SUMS_FLOATS = 6 * BLOCK_COLUMNS * LANES
MOST_PACKED_ROWS, PACKED_BLOCK_ROWS = 8, 4

_dot_1, _dot_2, _dot_3 = make_dot_block(1), make_dot_block(2), make_dot_block(3)
_dot_4, _dot_6 = make_dot_block(4), make_dot_block(6)
_part_6, _finish_6 = make_dot_part(6), make_dot_finish(6)
_unpack_2, _unpack_3, _unpack_4 = make_unpack_affine(2), make_unpack_affine(3), make_unpack_affine(4)
_unpack_5, _unpack_6, _unpack_8 = make_unpack_affine(5), make_unpack_affine(6), make_unpack_affine(8)
_packed_4_1, _packed_4_2 = make_dot_packed(4, 1), make_dot_packed(4, 2)
_packed_4_3, _packed_4_4 = make_dot_packed(4, 3), make_dot_packed(4, 4)
_packed_8_1, _packed_8_2 = make_dot_packed(8, 1), make_dot_packed(8, 2)
_packed_8_3, _packed_8_4 = make_dot_packed(8, 3), make_dot_packed(8, 4)
_reorder_4, _reorder_8 = make_reorder(4), make_reorder(8)

_ADDRESS = types.intp
_ROWS = types.NamedUniTuple(types.int64, len(RowsLayout._fields), RowsLayout)
_WEIGHTS = types.NamedUniTuple(types.int64, len(WeightLayout._fields), WeightLayout)
_BUFFERS = types.float32[:, ::1]


@njit(types.void(_ADDRESS, types.int64, types.int64, _ADDRESS), cache=True)
def _widen(source: int, stored: int, count: int, out: int) -> None:
    """`count` stored values to f32."""
    whole = count // LANES * LANES
    if stored == F32_STORED:
        for i in range(count):
            store_f32(load_f32(source + 4 * i), out + 4 * i)
    elif stored == F16_STORED:
        widen_f16(source, whole, out)
        for i in range(whole, count):
            store_f32(load_f16(source + 2 * i), out + 4 * i)
    else:
        for i in range(count):
            store_f32(load_bf16(source + 2 * i), out + 4 * i)


@njit(types.void(_WEIGHTS, _ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS), cache=True, forceinline=True)
def _unpack_column(weights: WeightLayout, packed: int, scales: int, biases: int, out: int) -> None:
    shift, size = weights.group_shift, weights.input_size
    if weights.bits == 4:
        _unpack_4(packed, scales, biases, shift, size, out)
    elif weights.bits == 8:
        _unpack_8(packed, scales, biases, shift, size, out)
    elif weights.bits == 2:
        _unpack_2(packed, scales, biases, shift, size, out)
    elif weights.bits == 3:
        _unpack_3(packed, scales, biases, shift, size, out)
    elif weights.bits == 5:
        _unpack_5(packed, scales, biases, shift, size, out)
    else:
        _unpack_6(packed, scales, biases, shift, size, out)


@njit(_ADDRESS(_WEIGHTS, _ADDRESS, types.int64, types.int64, _ADDRESS), cache=True, forceinline=True)
def _wide_scales(weights: WeightLayout, stored: int, first: int, count: int, wide: int) -> int:
    """Address of the f32 scales (or biases) of columns `first .. first + count`, widened to `wide` when halves."""
    groups = weights.input_size >> weights.group_shift
    if weights.stored == F32_STORED:
        return stored + first * groups * 4
    _widen(stored + first * groups * 2, weights.stored, count * groups, wide)
    return wide


@njit(types.void(*[types.int64] * 13), cache=True, forceinline=True)
def _multiply_packed_block(
    bits: int,
    count: int,
    x: int,
    stride: int,
    packed: int,
    row_bytes: int,
    scales: int,
    biases: int,
    group_bytes: int,
    shift: int,
    size: int,
    out: int,
    out_stride: int,
) -> None:
    """`count` rows, one to four, by four columns; the arguments of `make_dot_packed`."""
    if bits == 4:
        if count == 1:
            _packed_4_1(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
        elif count == 2:
            _packed_4_2(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
        elif count == 3:
            _packed_4_3(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
        else:
            _packed_4_4(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
    elif count == 1:
        _packed_8_1(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
    elif count == 2:
        _packed_8_2(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
    elif count == 3:
        _packed_8_3(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)
    else:
        _packed_8_4(x, stride, packed, row_bytes, scales, biases, group_bytes, shift, size, out, out_stride)


@njit(types.void(_ROWS, _WEIGHTS, types.int64, _ADDRESS, _ADDRESS, types.int64), cache=True)
def _multiply_packed_rows(
    rows: RowsLayout, weights: WeightLayout, first: int, wide_scales: int, out: int, out_stride: int
) -> None:
    """A few rows by the four columns from `first` on, packed in 4 or 8 bits and never widened to memory."""
    stride, shift, size = rows.padded_size * 4, weights.group_shift, weights.input_size
    group_bytes = (size >> shift) * 4
    packed = weights.weights + first * weights.row_bytes
    scales = _wide_scales(weights, weights.scales, first, BLOCK_COLUMNS, wide_scales)
    biases = _wide_scales(weights, weights.biases, first, BLOCK_COLUMNS, wide_scales + BLOCK_COLUMNS * group_bytes)
    for row in range(0, rows.rows, PACKED_BLOCK_ROWS):
        _multiply_packed_block(
            weights.bits,
            min(PACKED_BLOCK_ROWS, rows.rows - row),
            rows.reordered + row * stride,
            stride,
            packed,
            weights.row_bytes,
            scales,
            biases,
            group_bytes,
            shift,
            size,
            out + row * out_stride,
            out_stride,
        )


@njit(
    types.void(_WEIGHTS, types.int64, types.int64, types.int64, _ADDRESS, _ADDRESS),
    cache=True,
    forceinline=True,
)
def _widen_columns(weights: WeightLayout, first: int, count: int, padded_size: int, wide_scales: int, out: int) -> None:
    """Columns `first .. first + count` as f32 at `out`, each `padded_size` elements apart."""
    packed = weights.weights + first * weights.row_bytes
    if weights.bits == 0:
        for i in range(count):
            _widen(packed + i * weights.row_bytes, weights.stored, weights.input_size, out + i * padded_size * 4)
        return
    groups = weights.input_size >> weights.group_shift
    scales = _wide_scales(weights, weights.scales, first, count, wide_scales)
    biases = _wide_scales(weights, weights.biases, first, count, wide_scales + BLOCK_COLUMNS * groups * 4)
    for i in range(count):
        row, group = packed + i * weights.row_bytes, i * groups * 4
        _unpack_column(weights, row, scales + group, biases + group, out + i * padded_size * 4)


@njit(types.int64(_ROWS), cache=True, forceinline=True)
def _parted_blocks(rows: RowsLayout) -> int:
    """Blocks of six rows whose long rows are taken in parts, in a panel; 0 where whole rows fit the nearest cache."""
    if rows.block_rows < 6 or rows.padded_size <= MOST_UNPARTED:
        return 0
    return min(rows.rows, rows.panel_rows) // 6


@njit(types.void(_ROWS, _ADDRESS, _ADDRESS, types.int64, types.int64, types.int64, _ADDRESS), cache=True)
def _multiply_in_parts(
    rows: RowsLayout, columns: int, out: int, out_stride: int, first: int, blocks: int, sums: int
) -> None:
    """`blocks` times six rows from `first` on by four columns, part after part of the columns."""
    stride, size = rows.padded_size * 4, rows.padded_size
    parts = (size + MOST_UNPARTED - 1) // MOST_UNPARTED
    vectors = size // LANES
    for part in range(parts):
        start = vectors * part // parts * LANES
        length = vectors * (part + 1) // parts * LANES - start
        for block in range(blocks):
            left = rows.x + (first + 6 * block) * stride + 4 * start
            _part_6(left, stride, columns + 4 * start, stride, length, sums + 4 * SUMS_FLOATS * block, start)
    for block in range(blocks):
        _finish_6(sums + 4 * SUMS_FLOATS * block, out + (first + 6 * block) * out_stride, out_stride)


@njit(
    types.void(_ROWS, _ADDRESS, _ADDRESS, types.int64, types.int64, types.int64, _ADDRESS),
    cache=True,
    forceinline=True,
)
def _multiply_rows(rows: RowsLayout, columns: int, out: int, out_stride: int, first: int, last: int, sums: int) -> None:
    """Rows `first .. last` by four columns of f32 weights at address `columns`."""
    x, size, stride, block = rows.x, rows.padded_size, rows.padded_size * 4, rows.block_rows
    row = first
    if _parted_blocks(rows) > 1:
        blocks = (last - first) // 6
        _multiply_in_parts(rows, columns, out, out_stride, first, blocks, sums)
        row += 6 * blocks
    while block >= 6 and row + 6 <= last:
        _dot_6(x + row * stride, stride, columns, stride, size, out + row * out_stride, out_stride)
        row += 6
    while block >= 4 and row + 4 <= last:
        _dot_4(x + row * stride, stride, columns, stride, size, out + row * out_stride, out_stride)
        row += 4
    while block >= 3 and row + 3 <= last:
        _dot_3(x + row * stride, stride, columns, stride, size, out + row * out_stride, out_stride)
        row += 3
    while block >= 2 and row + 2 <= last:
        _dot_2(x + row * stride, stride, columns, stride, size, out + row * out_stride, out_stride)
        row += 2
    while row < last:
        _dot_1(x + row * stride, stride, columns, stride, size, out + row * out_stride, out_stride)
        row += 1


@njit(types.void(*[types.int64] * 8), cache=True)
def _finish_columns(
    source: int, source_stride: int, bias: int, out: int, out_stride: int, first: int, last: int, columns: int
) -> None:
    """Copy `columns` results of each row from `source` to `out`, adding the bias when its address is not 0."""
    for row in range(first, last):
        for column in range(columns):
            value = load_f32(source + row * source_stride + 4 * column)
            if bias != 0:
                value += load_f32(bias + 4 * column)
            store_f32(value, out + row * out_stride + 4 * column)


@njit(types.void(_ROWS, _WEIGHTS, _ADDRESS, _ADDRESS, types.int64, types.int64), cache=True, forceinline=True)
def _multiply_group(rows: RowsLayout, weights: WeightLayout, buffer: int, tail: int, group: int, panel: int) -> None:
    """All rows of a panel by the four columns of a group; `tail` holds (rows, 4) f32 for a group cut short."""
    column = group * BLOCK_COLUMNS
    present = min(BLOCK_COLUMNS, weights.output_size - column)
    as_stored = weights.bits == 0 and weights.stored == F32_STORED and rows.padded_size == weights.input_size
    wide_scales = buffer + BLOCK_COLUMNS * rows.padded_size * 4
    place, stride = rows.out + column * 4, weights.output_size * 4
    target, target_stride = (place, stride) if present == BLOCK_COLUMNS else (tail, BLOCK_COLUMNS * 4)
    last = min(rows.rows, panel + rows.panel_rows)
    if rows.reordered != 0 and present == BLOCK_COLUMNS:
        _multiply_packed_rows(rows, weights, column, wide_scales, place, stride)
    else:
        source = weights.weights + column * weights.row_bytes
        if not as_stored or present < BLOCK_COLUMNS:
            source = buffer
            _widen_columns(weights, column, present, rows.padded_size, wide_scales, buffer)
        groups = weights.input_size >> weights.group_shift
        sums = wide_scales + 2 * BLOCK_COLUMNS * groups * 4
        _multiply_rows(rows, source, target, target_stride, panel, last, sums)
    if weights.bias != 0 or present < BLOCK_COLUMNS:
        bias = weights.bias + column * 4 if weights.bias != 0 else 0
        _finish_columns(target, target_stride, bias, place, stride, panel, last, present)


@njit(types.void(_ROWS, _WEIGHTS, _BUFFERS, types.int64, types.int64), cache=True)
def _multiply_chunk(rows: RowsLayout, weights: WeightLayout, buffers: Any, chunk: int, chunks: int) -> None:
    groups = (weights.output_size + BLOCK_COLUMNS - 1) // BLOCK_COLUMNS
    buffer = buffers.ctypes.data + chunk * buffers.shape[1] * 4
    tail = buffers.ctypes.data + chunks * buffers.shape[1] * 4
    for panel in range(0, rows.rows, rows.panel_rows):
        for group in range(groups * chunk // chunks, groups * (chunk + 1) // chunks):
            _multiply_group(rows, weights, buffer, tail, group, panel)


@njit(types.void(_ROWS, _WEIGHTS, _BUFFERS, types.int64), cache=True, parallel=True)
def _multiply_chunks(rows: RowsLayout, weights: WeightLayout, buffers: Any, chunks: int) -> None:
    for chunk in prange(chunks):
        _multiply_chunk(rows, weights, buffers, chunk, chunks)


@njit(types.void(_ROWS, types.int64, _ADDRESS), cache=True)
def _reorder_rows(rows: RowsLayout, bits: int, out: int) -> None:
    if bits == 4:
        _reorder_4(rows.x, rows.rows * rows.padded_size, out)
    else:
        _reorder_8(rows.x, rows.rows * rows.padded_size, out)


@njit(types.void(_ROWS, _WEIGHTS, types.int64), cache=True, nogil=True)
def multiply(rows: RowsLayout, weights: WeightLayout, threads: int) -> None:
    """out (rows, N) f32 = x (rows, K) by the weights' transpose, plus the bias; small work stays on one thread."""
    products = rows.rows * rows.padded_size * weights.output_size
    chunks = 1 if products < SERIAL_PRODUCTS else threads
    width = BLOCK_COLUMNS * (rows.padded_size + 2 * (weights.input_size >> weights.group_shift))
    width += _parted_blocks(rows) * SUMS_FLOATS
    tail_rows = (rows.rows * BLOCK_COLUMNS + width - 1) // width
    few_packed = rows.rows <= MOST_PACKED_ROWS and (weights.bits == 4 or weights.bits == 8)
    reordered_rows = (rows.rows * rows.padded_size + width - 1) // width if few_packed else 0
    buffers = np.empty((chunks + tail_rows + reordered_rows, width), np.float32)
    if rows.padded_size != weights.input_size:
        buffers[:] = 0.0
    reordered: Any = np.int64(buffers.ctypes.data + (chunks + tail_rows) * width * 4 if few_packed else 0)
    if few_packed:
        _reorder_rows(rows, weights.bits, reordered)
    placed = RowsLayout(rows.x, reordered, rows.out, rows.rows, rows.padded_size, rows.panel_rows, rows.block_rows)
    if chunks == 1:
        _multiply_chunk(placed, weights, buffers, 0, 1)
    else:
        _multiply_chunks(placed, weights, buffers, chunks)


@njit(_WEIGHTS(_ADDRESS), cache=True, forceinline=True)
def _weights_at(table: int) -> WeightLayout:
    return WeightLayout(
        load_i64(table),
        load_i64(table + 8),
        load_i64(table + 16),
        load_i64(table + 24),
        load_i64(table + 32),
        load_i64(table + 40),
        load_i64(table + 48),
        load_i64(table + 56),
        load_i64(table + 64),
        load_i64(table + 72),
    )


@njit(cache=True, nogil=True)
def multiply_arrays(x: Any, table: int, out: Any, threads: int, block_rows: int) -> None:
    """`multiply` on contiguous f32 arrays; compiled once for writable and once for read-only rows.

    `table` is the address of a weight layout's integers: numba takes several times longer to accept the tuple than to
    read them.
    """
    source: Any = np.int64(x.ctypes.data)
    target: Any = np.int64(out.ctypes.data)
    panel_rows = max(block_rows, PANEL_BYTES // (4 * x.shape[1]))
    layout = RowsLayout(source, 0, target, x.shape[0], x.shape[1], panel_rows, block_rows)
    multiply(layout, _weights_at(table), threads)


@njit(cache=True)
def address_of(array: Any) -> int:
    """Address of an array's first element; some seven times faster than asking numpy."""
    return array.ctypes.data
