"""How schema columns lie in HDF5: widths, chunk sizes, creation. Must not know what the numbers mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import numpy as np

from divtrace.trace.header import Header
from divtrace.trace.schema import FLUSHES, SAMPLED, TABLES, Column, Table

SCHEMA_VERSION_ATTRIBUTE = "divtrace_schema_version"
HEADER_DATASET = "header"
LONG_TABLES = frozenset(
    {
        "string_bytes",
        "token_lists",
        "token_text_bytes",
        "rows",
        "reused",
        "draft_rows",
        "draft_layers",
    }
)
COUNTERS = frozenset({"u1", "u2", "u4"})
INCOMPRESSIBLE = frozenset({"value", "chosen", "committed_token", "token", "top_ids", "processed_top_ids"})
COMPRESSION: Mapping[str, Any] = {"shuffle": True, "compression": "gzip", "compression_opts": 1}
LONG_CHUNK_ROWS = 512
SHORT_CHUNK_ROWS = 128
SAMPLED_CHUNK_ROWS = 256
LARGEST_CHUNK_BYTES = 16 * 1024
FLUSH_CHUNK_ROWS = 16
TENSOR_CHUNK_BYTES = 1 << 20


def all_tables() -> Iterator[Table]:
    """Every table of the schema, the flush table last."""
    yield from TABLES
    yield FLUSHES


def recorded_columns(table: Table, header: Header) -> tuple[Column, ...]:
    """The columns of `table` that a trace with this header holds."""
    return tuple(column for column in table.columns if header.level.includes(column.level))


def column_width(column: Column, header: Header) -> int | None:
    """Trailing extent of a column; None for a flat one."""
    if not column.width:
        return None
    return {"layers": header.layers, "top_k": header.top_k, "tables": len(header.tables)}[column.width]


def column_dtype(column: Column) -> np.dtype[np.generic]:
    """Element type, always little-endian."""
    return np.dtype("<" + column.dtype)


def chunk_rows(table: Table, column: Column, header: Header) -> int:
    """Rows in one chunk: few enough to keep a short trace small, many enough to read a long one fast."""
    if table.name == "tensor_bytes":
        return TENSOR_CHUNK_BYTES
    if table is FLUSHES:
        return FLUSH_CHUNK_ROWS
    rows = LONG_CHUNK_ROWS if table.name in LONG_TABLES else SHORT_CHUNK_ROWS
    if table is SAMPLED:
        rows = SAMPLED_CHUNK_ROWS
    row_bytes = column_dtype(column).itemsize * max(column_width(column, header) or 1, 1)
    while rows > 1 and rows * row_bytes > LARGEST_CHUNK_BYTES:
        rows //= 2
    return rows


def is_compressed(column: Column) -> bool:
    """True for columns of small, repetitive numbers: steps, rows, positions, offsets.

    In SWMR mode every flush of a compressed chunk moves it and leaves its old place unused. That pays only where
    compression is strong; hashes, logits and token ids stay plain.
    """
    is_number = column.dtype in COUNTERS or column.name.endswith("_offset") or column.name == "random_number"
    return is_number and column.name not in INCOMPRESSIBLE


def create_column(group: h5py.Group, table: Table, column: Column, header: Header) -> h5py.Dataset:
    """Create an empty, growing dataset. Chunks carry a checksum, except where rows carry one themselves."""
    width = column_width(column, header)
    trailing = () if width is None else (width,)
    return group.create_dataset(
        column.name,
        shape=(0, *trailing),
        maxshape=(None, *trailing),
        chunks=(chunk_rows(table, column, header), *(max(extent, 1) for extent in trailing)),
        dtype=column_dtype(column),
        fletcher32=table is not FLUSHES,
        **(COMPRESSION if table is not FLUSHES and is_compressed(column) else {}),
        track_times=False,
    )
