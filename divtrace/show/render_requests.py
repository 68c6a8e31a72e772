"""The table of requests, and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from divtrace.show.requests import RequestView, view_requests
from divtrace.show.safe_text import excerpt, plain
from divtrace.show.tables import ByWidth, compact_table, number_text
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.requests/1"
_TEXT_CHARACTERS = 120


def show_requests(trace: Trace, limit: int | None = None) -> RenderableType:
    """One line a request; `limit` keeps the first ones and says how many were left out."""
    views = view_requests(trace)
    shown = views if limit is None else views[:limit]
    left = len(views) - len(shown)
    caption = f"{left} more requests; `--requests` lists all." if left else None
    return ByWidth(lambda is_narrow: _narrow(shown, caption) if is_narrow else _table(shown, caption))


def requests_json(trace: Trace) -> dict[str, Any]:
    """All requests as plain values."""
    return {"schema": SCHEMA, "trace": trace.path, "requests": [asdict(view) for view in view_requests(trace)]}


def _narrow(views: tuple[RequestView, ...], caption: str | None) -> RenderableType:
    """The table without texts, and the texts below it."""
    texts = compact_table("Output texts", is_wide=True)
    texts.show_header = False
    longest = max((plain(view.id).cell_len for view in views), default=0)
    texts.add_column(overflow="ellipsis", width=min(16, longest), no_wrap=True)
    texts.add_column(overflow="ellipsis", no_wrap=True, ratio=1)
    for view in views:
        texts.add_row(plain(view.id), Text(excerpt(view.output_text, _TEXT_CHARACTERS)))
    return Group(_table(views, caption, with_texts=False), "", texts)


def _table(views: tuple[RequestView, ...], caption: str | None, with_texts: bool = True) -> Table:
    speculates = any(view.proposed_tokens for view in views)
    preempts = any(view.preemptions for view in views)
    caches = any(view.cached_tokens for view in views)
    table = compact_table("Requests", is_wide=with_texts)
    table.caption = caption
    table.add_column("request", overflow="ellipsis", max_width=16, no_wrap=True)
    for name in ("prompt", "output", *(("first step", "last step") if with_texts else ("steps",))):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("ended", overflow="fold")
    for wanted, name in ((caches, "cached"), (preempts, "preempted"), (speculates, "accepted")):
        if wanted:
            table.add_column(name, justify="right", overflow="fold")
    if with_texts:
        table.add_column("output text", overflow="ellipsis", no_wrap=True, ratio=1)
    for view in views:
        cells: list[str | Text] = [plain(view.id), str(view.prompt_tokens), str(view.output_tokens)]
        steps = [number_text(view.first_step), number_text(view.ended_step)]
        cells += [*(steps if with_texts else ["-".join(steps)]), plain(view.ended)]
        cells += [str(view.cached_tokens)] if caches else []
        cells += [str(view.preemptions)] if preempts else []
        cells += [f"{view.accepted_tokens}/{view.proposed_tokens}"] if speculates else []
        cells += [Text(excerpt(view.output_text, _TEXT_CHARACTERS))] if with_texts else []
        table.add_row(*cells)
    return table
