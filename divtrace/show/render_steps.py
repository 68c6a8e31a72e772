"""The table of steps, alike ones on one line; and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from divtrace.show.alike_steps import AlikeSteps, group_alike_steps
from divtrace.show.safe_text import plain
from divtrace.show.tables import KIND_STYLES, ByWidth, compact_table, seconds_text, short_paths
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.steps/1"
_NAMED_SEGMENTS = 3


def show_steps(
    trace: Trace, first: int = 0, last: int | None = None, limit: int | None = None, continues: bool = False
) -> RenderableType:
    """Steps `first` to `last`; at most `limit` lines, and then how many were left out. `continues`: no heading."""
    groups = group_alike_steps(trace, first, last)
    shown = groups if limit is None else groups[:limit]
    caption = None
    if len(shown) < len(groups):
        left = trace.step_count - 1 - shown[-1].last if last is None else last - shown[-1].last
        caption = f"{left} more steps; `--steps` lists all."
    return ByWidth(lambda is_narrow: _table(shown, caption, is_narrow, continues))


def _table(groups: Sequence[AlikeSteps], caption: str | None, is_narrow: bool, continues: bool) -> Table:
    """One line for alike steps; where it is narrow the batch stands below its path, and fewer numbers are given."""
    table = compact_table("Steps", is_wide=True)
    table.caption = caption
    if continues:
        table.title, table.show_header = None, False
    table.add_column("step", no_wrap=True)
    table.add_column("rows", justify="right", no_wrap=True)
    if is_narrow:
        table.add_column("path and batch", ratio=1)
    else:
        for name in ("head", "waiting"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("path", overflow="fold")
        table.add_column("batch", overflow="fold", ratio=1)
    table.add_column("forward", justify="right", no_wrap=True)
    for group in groups:
        path, batch = plain(short_paths(group.paths)), _batch(group)
        step = str(group.first) if group.first == group.last else f"{group.first}-{group.last}"
        cells = (
            [Text("\n").join((path, batch))] if is_narrow else [str(group.head_rows), str(group.waiting), path, batch]
        )
        table.add_row(step, str(group.packed_rows), *cells, seconds_text(group.forward_s))
    return table


def steps_json(trace: Trace, first: int = 0, last: int | None = None) -> dict[str, Any]:
    """Groups of alike steps as plain values."""
    groups = [asdict(group) for group in group_alike_steps(trace, first, last)]
    for group in groups:
        group["batch"] = [{"request": r, "kind": kind, "rows": rows} for r, kind, rows in group["batch"]]
    return {"schema": SCHEMA, "trace": trace.path, "steps": groups}


def _batch(group: AlikeSteps) -> Text:
    """Segments in words; past a few, a count of each kind."""
    if len(group.batch) <= _NAMED_SEGMENTS:
        pieces = [
            plain(f"{request} {kind}" + (f" {rows}" if rows > 1 else ""), KIND_STYLES.get(kind, ""))
            for request, kind, rows in group.batch
        ]
        return Text(", ").join(pieces)
    kinds: dict[str, int] = {}
    for _, kind, _ in group.batch:
        kinds[kind] = kinds.get(kind, 0) + 1
    return Text(", ").join(plain(f"{count} {kind}", KIND_STYLES.get(kind, "")) for kind, count in kinds.items())
