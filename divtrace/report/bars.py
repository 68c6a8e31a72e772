"""Segments of a run joined into bars: thousands of decode steps become one record. Must not know pages."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from divtrace.align.index import Integers, TraceIndex
from divtrace.report.model import BarColumns

LARGEST_EXACT_BARS = 60_000
_COLUMNS = ("request", "kind", "step", "first_position", "rows", "wanted_logits", "cached_tokens", "proposed_tokens")


def read_bars(index: TraceIndex) -> BarColumns:
    """Join the segments of a run; exactly where that gives few enough bars."""
    columns = {name: index.column("segments", name) for name in _COLUMNS}
    order = np.lexsort((columns["step"], columns["request"]))
    columns = {name: column[order] for name, column in columns.items()}
    starts = _exact_starts(columns)
    is_exact = int(np.count_nonzero(starts)) <= LARGEST_EXACT_BARS
    return _joined(columns, starts if is_exact else _next_step_starts(columns), is_exact)


def _next_step_starts(columns: dict[str, Integers]) -> npt.NDArray[np.bool_]:
    """True where a segment does not go on from the one before: other request, other kind, or a step between."""
    starts = np.ones(columns["step"].size, bool)
    goes_on = np.diff(columns["step"]) == 1
    for name in ("request", "kind"):
        goes_on &= np.diff(columns[name]) == 0
    starts[1:] = ~goes_on
    return starts


def _exact_starts(columns: dict[str, Integers]) -> npt.NDArray[np.bool_]:
    starts = _next_step_starts(columns)
    goes_on = np.diff(columns["first_position"]) == columns["rows"][:-1]
    for name in ("rows", "wanted_logits", "cached_tokens", "proposed_tokens"):
        goes_on &= np.diff(columns[name]) == 0
    starts[1:] |= ~goes_on
    return starts


def _joined(columns: dict[str, Integers], starts: npt.NDArray[np.bool_], is_exact: bool) -> BarColumns:
    first = np.flatnonzero(starts)
    steps = np.diff(np.append(first, starts.size))
    kept = {name: column[first].tolist() for name, column in columns.items()}
    rows = np.maximum.reduceat(columns["rows"], first).tolist() if first.size else []
    return BarColumns(
        request=kept["request"],
        kind=kept["kind"],
        step=kept["step"],
        steps=steps.tolist(),
        position=kept["first_position"],
        rows=rows,
        logits=kept["wanted_logits"],
        cached=kept["cached_tokens"],
        proposed=kept["proposed_tokens"],
        is_exact=is_exact,
    )
