"""The table of steps, alike ones on one line; and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from divtrace.show.alike_steps import AlikeSteps, group_alike_steps
from divtrace.show.safe_text import plain
from divtrace.show.tables import KIND_STYLES, compact_table, seconds_text, short_paths
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.steps/1"
_NAMED_SEGMENTS = 3


def show_steps(trace: Trace, first: int = 0, last: int | None = None, limit: int | None = None) -> RenderableType:
    """Steps `first` to `last`; at most `limit` lines, and then how many were left out."""
    groups = group_alike_steps(trace, first, last)
    shown = groups if limit is None else groups[:limit]
    table = compact_table("Steps", is_wide=True)
    table.add_column("step", no_wrap=True)
    for name in ("rows", "head", "waiting"):
        table.add_column(name, justify="right")
    table.add_column("path", overflow="fold")
    table.add_column("batch", overflow="fold", ratio=1)
    table.add_column("forward", justify="right", no_wrap=True)
    for group in shown:
        table.add_row(
            str(group.first) if group.first == group.last else f"{group.first}-{group.last}",
            str(group.packed_rows),
            str(group.head_rows),
            str(group.waiting),
            plain(short_paths(group.paths)),
            _batch(group),
            seconds_text(group.forward_s),
        )
    if len(shown) < len(groups):
        left = trace.step_count - 1 - shown[-1].last if last is None else last - shown[-1].last
        table.caption = f"{left} more steps; `--steps` lists all."
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
