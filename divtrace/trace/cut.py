"""Cuts a trace to its first steps. Must not know why they matter or where the result goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.errors import EvidenceError
from divtrace.trace.layout import recorded_columns
from divtrace.trace.reader import Trace
from divtrace.trace.schema import FOOTER, TABLES, Table
from divtrace.trace.writer import TraceWriter

CHUNK_ROWS = 16384


def steps_of_requests(trace: Trace, request_ids: Sequence[str]) -> int:
    """How many first steps of a run hold everything that these requests did.

    Raises:
        EvidenceError: the trace has no such request.
    """
    known = trace.request_ids()
    unknown = [request_id for request_id in request_ids if request_id not in known]
    if unknown:
        raise EvidenceError(
            f"{trace.path}: there is no request {unknown[0]!r}; it holds {', '.join(map(repr, known))}."
        )
    numbers = [known.index(request_id) for request_id in request_ids]
    steps = trace.column("segments", "step")[np.isin(trace.column("segments", "request"), numbers)]
    return int(steps.max()) + 1 if len(steps) else 0


def cut_trace(trace: Trace, path: Path, steps: int) -> Path:
    """Write the first `steps` steps of an open trace to `path`, every row of every request in them.

    Neighbours are kept: without them nobody can say which batch a row lay in. The result is a trace of its own that
    ended where it was cut; a cut that keeps everything keeps its ending, too.

    Raises:
        TraceError: the trace is damaged, or the path exists or cannot be written.
    """
    steps = min(steps, trace.step_count)
    with TraceWriter(path, trace.header, flush_steps=1 << 30, flush_seconds=float("inf")) as writer:
        for table in TABLES:
            if table is not FOOTER and table.name in trace.header.tables and recorded_columns(table, trace.header):
                _copy_table(trace, writer, table, _kept_rows(trace, table, steps))
        if steps == trace.step_count and not trace.clean_end:
            writer.flush()
            writer.abandon()
        else:
            writer.close(interrupted=trace.interrupted, failure=trace.failure)
    return path


def _kept_rows(trace: Trace, table: Table, steps: int) -> int:
    """Rows of a table before the first one that belongs to a later step; all of a table that steps do not own."""
    column = "submitted_step" if table.name == "requests" else "step"
    if steps == trace.step_count or all(column != known.name for known in table.columns):
        return trace.length(table.name)
    later = np.flatnonzero(trace.column(table.name, column) >= steps)
    return int(later[0]) if len(later) else trace.length(table.name)


def _copy_table(trace: Trace, writer: TraceWriter, table: Table, rows: int) -> None:
    columns = [column.name for column in recorded_columns(table, trace.header)]
    for start in range(0, rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, rows)
        writer.append(table.name, {column: _column(trace, table.name, column, start, stop) for column in columns})
        writer.flush()


def _column(trace: Trace, table: str, column: str, start: int, stop: int) -> npt.NDArray[Any]:
    """Rows of a column; of one that an older trace lacks, what it means there."""
    if (table, column) == ("sampled", "committed_token"):
        return trace.committed_tokens()[start:stop]
    return trace.column(table, column, start, stop)
