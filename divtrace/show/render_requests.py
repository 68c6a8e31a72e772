"""The table of requests, and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from divtrace.show.requests import RequestView, view_requests
from divtrace.show.safe_text import excerpt, plain
from divtrace.show.tables import compact_table, number_text
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.requests/1"
_TEXT_CHARACTERS = 120


def show_requests(trace: Trace, limit: int | None = None) -> RenderableType:
    """One line a request; `limit` keeps the first ones and says how many were left out."""
    views = view_requests(trace)
    shown = views if limit is None else views[:limit]
    table = _table(shown)
    if len(shown) < len(views):
        table.caption = f"{len(views) - len(shown)} more requests; `--requests` lists all."
    return table


def requests_json(trace: Trace) -> dict[str, Any]:
    """All requests as plain values."""
    return {"schema": SCHEMA, "trace": trace.path, "requests": [asdict(view) for view in view_requests(trace)]}


def _table(views: tuple[RequestView, ...]) -> Table:
    speculates = any(view.proposed_tokens for view in views)
    preempts = any(view.preemptions for view in views)
    caches = any(view.cached_tokens for view in views)
    table = compact_table("Requests", is_wide=True)
    table.add_column("request", overflow="ellipsis", max_width=16, no_wrap=True)
    for name in ("prompt", "output", "first step", "last step"):
        table.add_column(name, justify="right")
    table.add_column("ended")
    for wanted, name in ((caches, "cached"), (preempts, "preempted"), (speculates, "accepted")):
        if wanted:
            table.add_column(name, justify="right")
    table.add_column("output text", overflow="ellipsis", no_wrap=True, ratio=1)
    for view in views:
        cells: list[str | Text] = [plain(view.id), str(view.prompt_tokens), str(view.output_tokens)]
        cells += [number_text(view.first_step), number_text(view.ended_step), plain(view.ended)]
        cells += [str(view.cached_tokens)] if caches else []
        cells += [str(view.preemptions)] if preempts else []
        cells += [f"{view.accepted_tokens}/{view.proposed_tokens}"] if speculates else []
        table.add_row(*cells, Text(excerpt(view.output_text, _TEXT_CHARACTERS)))
    return table
