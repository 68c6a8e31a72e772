"""Requests by steps as one picture that fits a width; and the same as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from divtrace.align.index import Integers, TraceIndex
from divtrace.show.paths import PlanPaths, main_path
from divtrace.show.safe_text import excerpt, plain
from divtrace.show.steps import kind_name
from divtrace.show.tables import KIND_STYLES
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.timeline/1"
_LETTERS = {"prefill": "P", "decode": "d", "verify": "v", "recompute": "R"}
# Several kinds in one column: the rarest event wins.
_PRECEDENCE = ("decode", "verify", "prefill", "recompute")
_BARS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 14


@dataclass(frozen=True, slots=True)
class Timeline:
    """A run cut into columns of steps. `cells` holds a kind for each request and column, empty where it has no rows."""

    column_steps: tuple[int, ...]
    packed_rows: tuple[int, ...]
    paths: tuple[str, ...]
    requests: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def make_timeline(trace: Trace, columns: int) -> Timeline:
    """Cut a run into at most `columns` columns; `column_steps` holds the first step of each."""
    index = TraceIndex(trace)
    steps = trace.step_count
    columns = max(1, min(columns, steps))
    column_of = (np.arange(steps, dtype=np.int64) * columns) // max(steps, 1)
    packed = np.zeros(columns, np.int64)
    np.maximum.at(packed, column_of, index.column("steps", "packed_rows"))
    first = np.searchsorted(column_of, np.arange(columns if steps else 0))
    return Timeline(
        column_steps=tuple(first.tolist()),
        packed_rows=tuple(packed[: first.size].tolist()),
        paths=_paths(trace, index, column_of, packed, first.size),
        requests=index.request_ids,
        cells=_cells(index, column_of, first.size),
    )


def show_timeline(trace: Trace, width: int, limit: int | None = None) -> RenderableType:
    """A timeline of at most `width` characters; `limit` keeps the first requests and says how many were left out."""
    timeline = make_timeline(trace, width - _LABEL_WIDTH - 1)
    if not timeline.column_steps:
        return plain(f"{trace.path} holds no step yet.")
    shown = len(timeline.requests) if limit is None else min(limit, len(timeline.requests))
    lines = [_ruler(timeline, trace.step_count), _line("packed rows", _bars(timeline))]
    letters = _path_letters(timeline)
    lines.append(_line("path", Text("".join(letters.get(path, " ") for path in timeline.paths))))
    lines += [_line(timeline.requests[row], _kinds(timeline.cells[row])) for row in range(shown)]
    if shown < len(timeline.requests):
        lines.append(plain(f"{len(timeline.requests) - shown} more requests"))
    return Group(*lines, "", _legend(timeline, letters))


def timeline_json(trace: Trace, columns: int = 200) -> dict[str, Any]:
    """The timeline as plain values; a cell is a kind or an empty string."""
    timeline = make_timeline(trace, columns)
    rows = [
        {"request": request, "cells": list(cells)}
        for request, cells in zip(timeline.requests, timeline.cells, strict=True)
    ]
    return {
        "schema": SCHEMA,
        "trace": trace.path,
        "column_steps": list(timeline.column_steps),
        "packed_rows": list(timeline.packed_rows),
        "paths": list(timeline.paths),
        "requests": rows,
    }


def _cells(index: TraceIndex, column_of: Integers, columns: int) -> tuple[tuple[str, ...], ...]:
    kinds = index.column("segments", "kind")
    names = [kind_name(int(kind)) for kind in range(int(kinds.max(initial=0)) + 1)]
    rank = np.array([_PRECEDENCE.index(name) + 1 if name in _PRECEDENCE else len(_PRECEDENCE) + 1 for name in names])
    grid = np.zeros((len(index.request_ids), columns), np.int64)
    places = index.column("segments", "request"), column_of[index.column("segments", "step")]
    np.maximum.at(grid, places, rank[kinds])
    words = ("", *_PRECEDENCE, "other")
    return tuple(tuple(words[cell] for cell in row) for row in grid.tolist())


def _paths(
    trace: Trace, index: TraceIndex, column_of: Integers, packed: npt.NDArray[np.int64], columns: int
) -> tuple[str, ...]:
    """Path of the step with the most rows in each column."""
    plans = PlanPaths(trace)
    rows, numbers = index.column("steps", "packed_rows"), index.column("steps", "plan")
    largest = np.flatnonzero(rows == packed[column_of]) if rows.size else rows
    _, chosen = np.unique(column_of[largest], return_index=True)
    return tuple(main_path(plans.groups(int(numbers[step]))) for step in largest[chosen][:columns].tolist())


def _path_letters(timeline: Timeline) -> dict[str, str]:
    """One letter for each path: the path's own where it is free, so that it can be guessed."""
    letters: dict[str, str] = {}
    for path in dict.fromkeys(filter(None, timeline.paths)):
        free = [
            c for c in (*(c for c in path if c.isascii() and c.isalnum()), *"0123456789") if c not in letters.values()
        ]
        # gemv and gemm share their beginning: the last letter of the first word tells them apart.
        stem = path.split("-")[0]
        letters[path] = stem[-1] if stem and stem[-1] in free else next(iter(free), "?")
    return letters


def _bars(timeline: Timeline) -> Text:
    """Packed rows on a logarithmic scale: one row is the lowest bar."""
    top = np.log(max(timeline.packed_rows)) if max(timeline.packed_rows) > 1 else 1.0
    heights = (round(float(np.log(max(rows, 1)) / top) * (len(_BARS) - 1)) for rows in timeline.packed_rows)
    bars = (_BARS[h] if rows else " " for h, rows in zip(heights, timeline.packed_rows, strict=True))
    return Text("".join(bars), style="cyan")


def _kinds(cells: tuple[str, ...]) -> Text:
    line = Text()
    for kind in cells:
        line.append(_LETTERS.get(kind, "·" if not kind else "?"), KIND_STYLES.get(kind, "dim" if not kind else ""))
    return line


def _ruler(timeline: Timeline, steps: int) -> Text:
    last = str(steps - 1)
    columns = len(timeline.column_steps)
    ruler = "0" + last.rjust(columns - 1) if columns > len(last) else "0"
    return _line("step", Text(ruler, style="dim"))


def _line(label: str, content: Text) -> Text:
    return Text.assemble(
        Text(excerpt(label, _LABEL_WIDTH).ljust(_LABEL_WIDTH + 1), style="bold"), content, no_wrap=True
    )


def _legend(timeline: Timeline, letters: dict[str, str]) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("requests", plain(", ".join(f"{letter} {kind}" for kind, letter in _LETTERS.items()) + ", · no rows"))
    table.add_row("path", plain(", ".join(f"{letter} {path}" for path, letter in letters.items())))
    most = max(timeline.packed_rows)
    table.add_row("packed rows", plain(f"1 to {most}, logarithmic"))
    return table
