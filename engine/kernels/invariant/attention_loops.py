"""The compiled loops of the invariant attention: (row, K/V head) over threads, query heads over blocks.

Must not know requests or policies. Each row reads the keys of its own window, in rising position; query heads of one
K/V head share the loads. As in `linear_loops`, remove `__pycache__` after an edit of the vector modules.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, types

from engine.kernels.invariant.attention_vectors import exponentiate, make_weighted_sum, scaled_maximum
from engine.kernels.invariant.layout import BLOCK_COLUMNS, LANES, AttentionLayout
from engine.kernels.invariant.scalars import load_f32, load_i32, store_f32, store_i32
from engine.kernels.invariant.vectors import make_dot_block_indexed

_dot_1, _dot_2 = make_dot_block_indexed(1), make_dot_block_indexed(2)
_dot_3, _dot_4 = make_dot_block_indexed(3), make_dot_block_indexed(4)
_sum_1x1, _sum_1x4 = make_weighted_sum(1, 1), make_weighted_sum(1, 4)
_sum_2x4, _sum_3x4, _sum_4x4 = make_weighted_sum(2, 4), make_weighted_sum(3, 4), make_weighted_sum(4, 4)

_ADDRESS = types.intp
_CALL = types.NamedUniTuple(types.int64, len(AttentionLayout._fields), AttentionLayout)
NEGATIVE_INFINITY = np.float32(-np.inf)
BLOCK_HEADS = 4
SERIAL_PRODUCTS = 100_000


@njit(types.void(_CALL, _ADDRESS, types.int64, _ADDRESS, _ADDRESS, types.int64, _ADDRESS), cache=True)
def _score(call: AttentionLayout, queries: int, heads: int, keys: int, slots: int, count: int, scores: int) -> None:
    """Scores of `heads` queries against `count` keys, (heads, padded_keys + 16) at `scores`; padding is -inf."""
    size, row, stride = call.head_size, call.head_size * 4, (call.padded_keys + LANES) * 4
    key_stride = call.kv_heads * row
    for key in range(0, count, BLOCK_COLUMNS):
        index, out = slots + 4 * key, scores + 4 * key
        if heads == 1:
            _dot_1(queries, row, keys, key_stride, index, size, out, stride)
        elif heads == 2:
            _dot_2(queries, row, keys, key_stride, index, size, out, stride)
        elif heads == 3:
            _dot_3(queries, row, keys, key_stride, index, size, out, stride)
        else:
            _dot_4(queries, row, keys, key_stride, index, size, out, stride)
    padded = (count + LANES) // LANES * LANES
    for head in range(heads):
        for key in range(count, padded):
            store_f32(NEGATIVE_INFINITY, scores + head * stride + 4 * key)


@njit(types.void(_CALL, _ADDRESS, types.int64, _ADDRESS, _ADDRESS, types.int64, _ADDRESS), cache=True)
def _average(call: AttentionLayout, scores: int, heads: int, values: int, slots: int, count: int, out: int) -> None:
    """Value rows averaged by `heads` rows of weights, 64 elements of the head at a time, then 16."""
    row, stride = call.head_size * 4, (call.padded_keys + LANES) * 4
    totals = scores + 4 * call.padded_keys
    value_stride = call.kv_heads * row
    part = 0
    while part + 64 <= call.head_size:
        at, to = values + 4 * part, out + 4 * part
        if heads == 1:
            _sum_1x4(scores, stride, at, value_stride, slots, count, totals, stride, to, row)
        elif heads == 2:
            _sum_2x4(scores, stride, at, value_stride, slots, count, totals, stride, to, row)
        elif heads == 3:
            _sum_3x4(scores, stride, at, value_stride, slots, count, totals, stride, to, row)
        else:
            _sum_4x4(scores, stride, at, value_stride, slots, count, totals, stride, to, row)
        part += 64
    while part < call.head_size:
        at, to = values + 4 * part, out + 4 * part
        for head in range(heads):
            weights, total = scores + head * stride, totals + head * stride
            _sum_1x1(weights, stride, at, value_stride, slots, count, total, stride, to + head * row, row)
        part += LANES


@njit(types.void(_CALL, types.float32, _ADDRESS, types.int64, types.int64, types.int64), cache=True)
def _weigh(call: AttentionLayout, scale: float, scores: int, count: int, padded: int, head: int) -> None:
    """Scores of query head `head` to exponentials and their total; the sink takes the place after the last key."""
    sink = load_f32(call.sinks + 4 * head) if call.sinks != 0 else NEGATIVE_INFINITY
    largest = scaled_maximum(scores, padded, scale, sink)
    store_f32(sink, scores + 4 * count)
    total = exponentiate(scores, padded, largest)
    store_f32(total, scores + 4 * call.padded_keys)


@njit(types.void(_CALL, types.float32, types.int64, _ADDRESS), cache=True)
def _attend_heads(call: AttentionLayout, scale: float, task: int, buffer: int) -> None:
    """All query heads of one K/V head of one row; the buffer holds the slots, then scores and a total per head."""
    row, kv_head = task // call.kv_heads, task % call.kv_heads
    length = load_i32(call.lengths + 4 * row)
    first = max(0, length - call.window) if call.window > 0 else 0
    count = length - first
    padded = (count + LANES) // LANES * LANES
    table = call.slots + (load_i32(call.table_of_row + 4 * row) * call.table_width + first) * 4
    for key in range(padded):
        store_i32(load_i32(table + 4 * min(key, count - 1)), buffer + 4 * key)
    scores, stride = buffer + 4 * call.padded_keys, 4 * (call.padded_keys + LANES)
    head_bytes, group = call.head_size * 4, call.heads // call.kv_heads
    keys, values = call.keys + kv_head * head_bytes, call.values + kv_head * head_bytes
    for block in range(0, group, BLOCK_HEADS):
        heads, head = min(BLOCK_HEADS, group - block), kv_head * group + block
        offset = (row * call.heads + head) * head_bytes
        _score(call, call.queries + offset, heads, keys, buffer, count, scores)
        for i in range(heads):
            _weigh(call, scale, scores + i * stride, count, padded, head + i)
        _average(call, scores, heads, values, buffer, count, call.out + offset)


@njit(types.void(_CALL, types.float32, types.float32[:, ::1], types.int64), cache=True, parallel=True)
def _attend_parallel(call: AttentionLayout, scale: float, buffers: Any, chunks: int) -> None:
    for chunk in prange(chunks):
        for task in range(chunk, call.rows * call.kv_heads, chunks):
            _attend_heads(call, scale, task, buffers.ctypes.data + chunk * buffers.shape[1] * 4)


@njit(types.void(_CALL, types.float32, types.float32[:, ::1]), cache=True)
def _attend_serial(call: AttentionLayout, scale: float, buffers: Any) -> None:
    for task in range(call.rows * call.kv_heads):
        _attend_heads(call, scale, task, buffers.ctypes.data)


@njit(types.void(_CALL, types.float32, types.int64), cache=True, nogil=True)
def attend(call: AttentionLayout, scale: float, threads: int) -> None:
    """Attention of all rows; small work stays on one thread."""
    products = call.rows * call.padded_keys * call.heads * call.head_size
    chunks = 1 if products < SERIAL_PRODUCTS else threads
    width = call.padded_keys + BLOCK_HEADS * (call.padded_keys + LANES)
    buffers = np.empty((chunks, width), np.float32)
    if chunks == 1:
        _attend_serial(call, scale, buffers)
    else:
        _attend_parallel(call, scale, buffers, chunks)
