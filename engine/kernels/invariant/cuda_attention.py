"""Row-invariant attention on CUDA over paged K/V, read in place. Must not know requests, stores or policies."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.errors import EngineError
from engine.kernels.invariant.attention import VisibleKeys
from engine.kernels.invariant.cuda_kernels import KernelSource, build, nothing, number

CHUNK = 64
LINES = 16
PLAIN_WARPS = 4
WALK_WARPS = 4
MERGE_WARPS = 4
SPLIT_BYTES = 48 * 1024 * 1024
LARGEST_WALK = 128
HALVES = (mx.float16, mx.bfloat16)

_FILES = ("primitives.cuh", "attention_tile.cuh", "attention.cuh")
_CHUNK = KernelSource(
    "divtrace_chunk_attention",
    _FILES,
    ("queries", "keys", "values", "tables", "tiles", "lengths", "scale", "sizes"),
    ("partial", "stats"),
    "chunk_attention<T, SIZE, WINDOW>(queries, keys, values, tables, tiles, lengths, scale, sizes, partial, stats);",
)
_MERGE = KernelSource(
    "divtrace_merge_chunks",
    _FILES,
    ("partial", "stats", "lengths", "sinks", "sizes"),
    ("out",),
    "merge_chunks<T, SIZE, WINDOW, SINKS>(partial, stats, lengths, sinks, sizes, out);",
)
_PLAIN = KernelSource(
    "divtrace_plain_attention",
    ("primitives.cuh", "float32.cuh"),
    ("queries", "keys", "values", "tables", "table_of_row", "lengths", "sinks", "scale", "sizes"),
    ("out",),
    "plain_attention<T, SIZE, WINDOW, SINKS>"
    "(queries, keys, values, tables, table_of_row, lengths, sinks, scale, sizes, out);",
)


@cache
def _walk_source(head_size: int) -> KernelSource:
    """Keys and values of two chunks lie in shared memory."""
    return KernelSource(
        "divtrace_walk_attention",
        _FILES,
        ("queries", "keys", "values", "tables", "tiles", "lengths", "sinks", "scale", "sizes"),
        ("out",),
        "extern __shared__ uint4 memory[]; walk_attention<T, SIZE, WINDOW, SINKS, WARPS>"
        "(queries, keys, values, tables, tiles, lengths, sinks, scale, sizes, out, memory);",
        2 * 2 * CHUNK * head_size * 2,
    )


@dataclass(frozen=True, slots=True, eq=False)
class DeviceKeys:
    """`VisibleKeys` on the device, cut into tiles for a model's heads; made once a step.

    `tiles` (tiles, 4) int32: table, first row of the segment, first line of the tile, lines of the segment, where a
    line is a (row, head of the group); a segment is a run of rows with one table. `walks`: one warp is to walk all
    chunks of its lines, for there are many; tiles then come in fours of one segment. `chunks` is the number of chunks
    of 64 positions that the longest row sees, `sizes` what the kernels want to know of all this.
    """

    tables: mx.array
    table_of_row: mx.array
    lengths: mx.array
    tiles: mx.array
    sizes: mx.array
    rows: int
    heads: int
    kv_heads: int
    head_size: int
    chunks: int
    walks: bool
    pool_slots: int

    def fits(self, heads: int, kv_heads: int, head_size: int) -> bool:
        """True for layers with these heads."""
        return (self.heads, self.kv_heads, self.head_size) == (heads, kv_heads, head_size)


def tile_lines(table_of_row: npt.NDArray[np.int32], group: int, multiple: int) -> npt.NDArray[np.int32]:
    """Tiles (tiles, 4) int32 of at most 16 lines, for the table of each row (rows,).

    A segment has a multiple of `multiple` tiles, the last of them empty where its lines do not reach.
    """
    if not len(table_of_row):
        return np.zeros((0, 4), np.int32)
    starts = np.flatnonzero(np.diff(table_of_row, prepend=-1))
    ends = np.append(starts[1:], len(table_of_row))
    whole = LINES * multiple
    tiles = [
        (table_of_row[start], start, first, (end - start) * group)
        for start, end in zip(starts, ends, strict=True)
        for first in range(0, -(-(end - start) * group // whole) * whole, LINES)
    ]
    return np.array(tiles, np.int32)


def device_keys(visible: VisibleKeys, heads: int, kv_heads: int, head_size: int) -> DeviceKeys:
    """Put checked tables on the device, for `heads` query heads in whole groups over `kv_heads`.

    Raises:
        EngineError: the heads make no whole groups.
    """
    if kv_heads < 1 or heads % kv_heads:
        raise EngineError(f"The invariant CUDA attention needs heads in whole groups, not {heads} over {kv_heads}.")
    rows, chunks = len(visible.lengths), -(-int(visible.lengths.max(initial=0)) // CHUNK)
    walks = rows * heads * chunks * head_size * 4 > SPLIT_BYTES and head_size <= LARGEST_WALK
    tiles = tile_lines(visible.table_of_row, heads // kv_heads, WALK_WARPS if walks else 1)
    return DeviceKeys(
        tables=mx.array(visible.tables),
        table_of_row=mx.array(visible.table_of_row),
        lengths=mx.array(visible.lengths),
        tiles=mx.array(tiles),
        sizes=mx.array([rows, heads, kv_heads, visible.tables.shape[1], len(tiles), chunks], mx.int32),
        rows=rows,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        chunks=chunks,
        walks=walks,
        pool_slots=visible.pool_slots,
    )


def _check(queries: mx.array, keys: mx.array, values: mx.array, visible: DeviceKeys) -> None:
    rows, heads, size = queries.shape
    fits = keys.ndim == 3 and visible.fits(heads, keys.shape[1], size)
    if not fits or keys.shape != values.shape or keys.shape[2] != size:
        raise EngineError(
            f"The invariant CUDA attention was prepared for {visible.heads} query heads over {visible.kv_heads} of size"
            f" {visible.head_size} and got queries {queries.shape} over pools {keys.shape} and {values.shape}."
        )
    if keys.dtype != queries.dtype or values.dtype != queries.dtype:
        raise EngineError("The invariant CUDA attention needs queries and both pools of one type.")
    if rows != visible.rows or keys.shape[0] < visible.pool_slots:
        raise EngineError(
            f"The invariant CUDA attention got {rows} queries over {keys.shape[0]} slots, but key tables for"
            f" {visible.rows} rows checked against {visible.pool_slots} slots."
        )


def paged_attention(
    queries: mx.array,
    key_pool: mx.array,
    value_pool: mx.array,
    visible: DeviceKeys,
    *,
    scale: float,
    window: int | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """Softmax attention of each query over the keys it sees: (rows, heads, head_size) in the queries' type.

    `queries` is (rows, heads, head_size), the pools (slots, kv_heads, head_size) of the same type. `window` keeps the
    last that many keys; `sinks` (heads,) adds one score per head that takes weight and has no value.

    Raises:
        EngineError: no CUDA device, or shapes or types that do not fit.
    """
    _check(queries, key_pool, value_pool, visible)
    rows, _, size = queries.shape
    if rows == 0:
        return queries
    template: list[tuple[str, Any]] = [("T", queries.dtype), ("SIZE", size), ("WINDOW", window or 0)]
    sink_scores = nothing(mx.float32) if sinks is None else sinks.astype(mx.float32)
    call = _Call(queries, key_pool, value_pool, visible, number(scale), sink_scores, template, sinks is not None)
    if queries.dtype not in HALVES or size % CHUNK:
        return call.plain()
    return call.walk() if visible.walks else call.split()


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """One attention call and the three ways to launch it; `walk` and `split` give the same bits."""

    queries: mx.array
    keys: mx.array
    values: mx.array
    visible: DeviceKeys
    scale: mx.array
    sinks: mx.array
    template: list[tuple[str, Any]]
    has_sinks: bool

    def _launch(
        self, source: KernelSource, inputs: list[mx.array], blocks: tuple[int, int, int], warps: int
    ) -> mx.array:
        return build(source)(
            inputs=[*inputs, self.visible.sizes],
            template=[*self.template, ("SINKS", self.has_sinks), ("WARPS", warps)],
            grid=(blocks[0] * 32 * warps, blocks[1], blocks[2]),
            threadgroup=(32 * warps, 1, 1),
            output_shapes=[self.queries.shape],
            output_dtypes=[self.queries.dtype],
        )[0]

    def plain(self) -> mx.array:
        rows, heads, _ = self.queries.shape
        visible = self.visible
        inputs = [self.queries, self.keys, self.values, visible.tables, visible.table_of_row, visible.lengths]
        blocks = (-(-rows * heads // PLAIN_WARPS), 1, 1)
        return self._launch(_PLAIN, [*inputs, self.sinks, self.scale], blocks, PLAIN_WARPS)

    def walk(self) -> mx.array:
        visible = self.visible
        inputs = [self.queries, self.keys, self.values, visible.tables, visible.tiles, visible.lengths]
        blocks = (-(-visible.tiles.shape[0] // WALK_WARPS), visible.kv_heads, 1)
        return self._launch(_walk_source(visible.head_size), [*inputs, self.sinks, self.scale], blocks, WALK_WARPS)

    def split(self) -> mx.array:
        visible = self.visible
        rows, heads, size = self.queries.shape
        partial, stats = build(_CHUNK)(
            inputs=[
                self.queries,
                self.keys,
                self.values,
                visible.tables,
                visible.tiles,
                visible.lengths,
                self.scale,
                self.visible.sizes,
            ],
            template=self.template,
            grid=(visible.chunks * 32, visible.tiles.shape[0], visible.kv_heads),
            threadgroup=(32, 1, 1),
            output_shapes=[(rows, heads, visible.chunks, size), (rows, heads, visible.chunks, 2)],
            output_dtypes=[mx.float32, mx.float32],
        )
        blocks = (-(-rows * heads // MERGE_WARPS), 1, 1)
        return self._launch(_MERGE, [partial, stats, visible.lengths, self.sinks], blocks, MERGE_WARPS)
