"""Row-invariant attention on CPU over paged K/V, read in place. Must not know requests, stores or policies.

Contract: the bits of a query's output depend on the query, the K/V rows it sees in their order, the scale, the window
and the sinks, on nothing else: not on the other queries of the call, where the rows lie in the pool, how
the tokens before were chunked, or the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError
from engine.kernels.invariant.layout import LANES, AttentionLayout
from engine.kernels.invariant.runtime import checked_threads, require_numba

FloatArray = npt.NDArray[np.float32]
IndexArray = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class VisibleKeys:
    """Which pool slots each packed row sees: checked once a step, used by every layer.

    `tables` (tables, width) int32 lists the slots of each request by position; row `r` sees the first
    `lengths[r]` of table `table_of_row[r]`. `pool_slots` is the number of slots that the tables were checked against.
    """

    tables: IndexArray
    table_of_row: IndexArray
    lengths: IndexArray
    pool_slots: int


def visible_keys(
    tables: npt.ArrayLike, table_of_row: npt.ArrayLike, lengths: npt.ArrayLike, *, pool_slots: int
) -> VisibleKeys:
    """Check slot tables (tables, width), the table of each row (rows,) and the keys each row sees (rows,).

    Raises:
        EngineError: shapes that do not fit, a length outside its table, or a visible slot outside the pool.
    """
    checked = VisibleKeys(
        tables=np.ascontiguousarray(tables, np.int32),
        table_of_row=np.ascontiguousarray(table_of_row, np.int32),
        lengths=np.ascontiguousarray(lengths, np.int32),
        pool_slots=pool_slots,
    )
    rows = checked.lengths.shape
    if checked.tables.ndim != 2 or len(rows) != 1 or checked.table_of_row.shape != rows:
        raise EngineError(
            f"The invariant attention needs tables (tables, width) and a table and a length per row, not shapes"
            f" {checked.tables.shape}, {checked.table_of_row.shape} and {rows}."
        )
    if rows == (0,):
        return checked
    count, width = checked.tables.shape
    if checked.table_of_row.min() < 0 or checked.table_of_row.max() >= count:
        raise EngineError(f"The invariant attention got a row whose slot table is not one of the {count} given.")
    if checked.lengths.min() < 1 or checked.lengths.max() > width:
        raise EngineError(
            f"The invariant attention got a row that sees fewer than 1 or more than {width} keys, the table's width."
        )
    longest = np.zeros(count, np.int32)
    np.maximum.at(longest, checked.table_of_row, checked.lengths)
    used = np.where(np.arange(width) < longest[:, None], checked.tables, 0)
    if used.min() < 0 or used.max() >= pool_slots:
        raise EngineError(f"The invariant attention got a visible slot outside the pool of {pool_slots} slots.")
    return checked


class _Compiled(NamedTuple):
    attend: Callable[[AttentionLayout, float, int], None]
    address_of: Callable[[Any], int]


@cache
def _compiled() -> _Compiled:
    require_numba()
    from engine.kernels.invariant import attention_loops, linear_loops

    return _Compiled(attention_loops.attend, linear_loops.address_of)


def _check_shapes(queries: FloatArray, keys: FloatArray, values: FloatArray, visible: VisibleKeys) -> None:
    if queries.ndim != 3 or keys.ndim != 3 or values.shape != keys.shape or queries.shape[2] != keys.shape[2]:
        raise EngineError(
            f"The invariant attention needs queries (rows, heads, size) and pools (slots, kv_heads, size), not shapes"
            f" {queries.shape}, {keys.shape} and {values.shape}."
        )
    rows, heads, size = queries.shape
    slots, kv_heads, _ = keys.shape
    if kv_heads == 0 or heads % kv_heads or size % LANES or size == 0:
        raise EngineError(
            f"The invariant attention needs heads in whole groups and a head size that is a multiple of {LANES},"
            f" not {heads} heads over {kv_heads} K/V heads of size {size}."
        )
    if any(array.dtype != np.float32 for array in (queries, keys, values)):
        raise EngineError("The invariant attention works in float32; convert queries and both pools.")
    if not (keys.flags.c_contiguous and values.flags.c_contiguous):
        raise EngineError("The invariant attention reads pools in place and needs them contiguous.")
    if visible.lengths.shape != (rows,) or slots < visible.pool_slots:
        raise EngineError(
            f"The invariant attention got {rows} queries over {slots} slots, but key tables for {visible.lengths.size}"
            f" rows checked against {visible.pool_slots} slots."
        )


def paged_attention(
    queries: FloatArray,
    key_pool: FloatArray,
    value_pool: FloatArray,
    visible: VisibleKeys,
    *,
    scale: float,
    window: int | None = None,
    sinks: FloatArray | None = None,
    threads: int | None = None,
) -> FloatArray:
    """Softmax attention of each query over the keys it sees: (rows, heads, head_size) float32.

    `queries` is (rows, heads, head_size), the pools (slots, kv_heads, head_size), all float32.
    `window` keeps the last that many keys; `sinks` (heads,) adds one score per head that takes weight and has no
    value (arXiv 2309.17453, as mlx-lm uses it).
    `threads` (None: all) changes the time and never the bits.

    Raises:
        EngineError: numba is missing, or shapes, types or settings that do not fit.
    """
    compiled = _compiled()
    _check_shapes(queries, key_pool, value_pool, visible)
    if not scale > 0.0 or (window is not None and window < 1):
        raise EngineError(
            f"The invariant attention needs a scale above 0 and a window of at least 1, not {scale} and {window}."
        )
    queries = np.ascontiguousarray(queries)
    out = np.empty_like(queries)
    if queries.shape[0] == 0:
        return out
    if sinks is not None:
        sinks = np.ascontiguousarray(sinks, np.float32)
        if sinks.shape != (queries.shape[1],):
            raise EngineError(f"The invariant attention got sinks of shape {sinks.shape} for {queries.shape[1]} heads.")
    most_keys = int(visible.lengths.max())
    if window is not None:
        most_keys = min(most_keys, window)
    address_of = compiled.address_of
    layout = AttentionLayout(
        queries=address_of(queries),
        keys=address_of(key_pool),
        values=address_of(value_pool),
        slots=address_of(visible.tables),
        table_of_row=address_of(visible.table_of_row),
        lengths=address_of(visible.lengths),
        sinks=0 if sinks is None else address_of(sinks),
        out=address_of(out),
        table_width=visible.tables.shape[1],
        rows=queries.shape[0],
        heads=queries.shape[1],
        kv_heads=key_pool.shape[1],
        head_size=queries.shape[2],
        window=window or 0,
        padded_keys=(most_keys + LANES) // LANES * LANES,
    )
    compiled.attend(layout, scale, checked_threads(threads))
    return out
