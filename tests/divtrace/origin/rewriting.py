"""Writes a trace again with other numbers in it: valid checksums and seals, content that nobody vouches for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from divtrace.trace.header import parse_header
from divtrace.trace.schema import TABLES
from divtrace.trace.writer import TraceWriter

Columns = dict[str, npt.NDArray[Any]]


def rewrite(
    path: Path, change: Callable[[str, Columns], None], finish: Callable[[TraceWriter], None] | None = None
) -> None:
    """Copy every table through `change` (which edits its columns in place), then let `finish` append rows."""
    copy = path.with_suffix(".rewritten.h5")
    with h5py.File(path, "r") as source:
        header = parse_header(bytes(source["header"][()].tobytes()), str(path))
        with TraceWriter(copy, header, overwrite=True) as writer:
            for table in TABLES:
                if table.name in source and table.name != "footer":
                    columns = {name: source[table.name][name][()] for name in source[table.name]}
                    change(table.name, columns)
                    if columns and len(next(iter(columns.values()))):
                        writer.append(table.name, columns)
            if finish is not None:
                finish(writer)
    copy.replace(path)


def append_audit(path: Path, step: int, position: int, layer: int) -> None:
    """Say that request 0, in `step`, found a row changed since it was written."""

    def finish(writer: TraceWriter) -> None:
        start = writer.append("string_bytes", {"value": np.frombuffer(b"changed", np.uint8)})
        kind = writer.append_row("strings", offset=start, count=7)
        hashes = {"expected_hash": 1, "found_hash": 2}
        writer.append_row("audits", step=step, request=0, position=position, layer=layer, kind_string=kind, **hashes)

    rewrite(path, lambda _table, _columns: None, finish)


def overwrite_cell(path: Path, cell: Mapping[str, Any], value: int) -> None:
    """Put `value`, cut to the column's type, into one cell given as table, column and row (from the start again
    past the end).
    """

    def change(table: str, columns: Columns) -> None:
        if table == cell["table"]:
            column = columns[cell["column"]]
            if len(column):
                column[cell["row"] % len(column)] = np.array(value).astype(column.dtype)

    rewrite(path, change)
