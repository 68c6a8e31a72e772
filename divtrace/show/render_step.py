"""One step's batch: segments, paths by site class, decisions, events; and the same as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from divtrace.show.memory import step_memory
from divtrace.show.paths import PathGroup
from divtrace.show.safe_text import plain
from divtrace.show.steps import StepReader, StepView
from divtrace.show.tables import ByWidth, compact_table, facts_table, kind_text, seconds_text
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.step/1"


def show_step(trace: Trace, step: int) -> RenderableType:
    """Everything about one step.

    Raises:
        DivtraceError: the trace has no such step.
    """
    view = StepReader(trace).step(step)
    parts: list[RenderableType] = [plain(f"Step {step} of {trace.path}", "bold"), facts_table(_facts(trace, view)), ""]
    parts += [_segments(view), "", _paths("Paths", view.paths)]
    for forward in view.draft_forwards:
        parts += ["", _paths(f"Draft forward {forward.forward}, {forward.packed_rows} rows", forward.paths)]
    if view.decisions:
        parts += ["", _decisions(view)]
    if view.events:
        parts += ["", _events(view)]
    return Group(*parts)


def step_json(trace: Trace, step: int) -> dict[str, Any]:
    """One step as plain values.

    Raises:
        DivtraceError: the trace has no such step.
    """
    return {"schema": SCHEMA, "trace": trace.path, **asdict(StepReader(trace).step(step))}


def _facts(trace: Trace, view: StepView) -> list[tuple[str, str]]:
    facts = [
        ("rows", f"{view.packed_rows} packed, {view.head_rows} at the head"),
        ("lengths", f"longest query {view.max_query_length}, longest key {view.max_key_length}"),
        ("queue", f"{view.running} running, {view.waiting} waiting"),
    ]
    memory = step_memory(trace, view.blocks_used, view.blocks_cached, view.blocks_total)
    if memory:
        facts.append(("K/V memory", memory))
    times = [
        ("schedule", view.schedule_s),
        ("draft", view.draft_s),
        ("forward", view.forward_s),
        ("sample", view.sample_s),
    ]
    facts.append(("times", ", ".join(f"{name} {seconds_text(seconds)}" for name, seconds in times)))
    return facts + [("warning", words) for words in view.flags]


def _segments(view: StepView) -> Table:
    """One line a segment; tokens from the cache and proposed ones have a column where there are any."""
    caches = any(segment.cached_tokens for segment in view.segments)
    drafts = any(segment.proposed_tokens for segment in view.segments)
    table = compact_table("Batch")
    table.add_column("request", overflow="ellipsis", max_width=24, no_wrap=True)
    table.add_column("kind", overflow="fold")
    wanted = (True, True, True, caches, drafts)
    for is_wanted, name in zip(wanted, ("positions", "packed rows", "logits", "cached", "proposed"), strict=True):
        if is_wanted:
            table.add_column(name, justify="right", overflow="fold")
    for segment in view.segments:
        cells = [str(segment.cached_tokens or "-")] if caches else []
        cells += [str(segment.proposed_tokens or "-")] if drafts else []
        table.add_row(
            plain(segment.request),
            kind_text(segment.kind),
            _range(segment.first_position, segment.rows),
            _range(segment.first_row, segment.rows),
            str(segment.wanted_logits),
            *cells,
        )
    return table


def _paths(title: str, groups: tuple[PathGroup, ...]) -> RenderableType:
    return ByWidth(lambda is_narrow: _paths_table(title, groups, is_narrow))


def _paths_table(title: str, groups: tuple[PathGroup, ...], is_narrow: bool) -> Table:
    """One line a site class; where it is narrow, what decided its path stands below it."""
    table = compact_table(title)
    table.add_column("site class", no_wrap=True)
    table.add_column("path, decided by" if is_narrow else "path", overflow="fold")
    table.add_column("rows", justify="right", no_wrap=True)
    table.add_column("sites", justify="right", no_wrap=True)
    if not is_narrow:
        table.add_column("decided by", overflow="fold")
    for group in groups:
        path, decided_by = plain(group.path), plain(group.decided_by)
        cells = [plain(group.site_class), Text("\n  ").join((path, decided_by)) if is_narrow else path]
        table.add_row(*cells, str(group.rows), str(group.sites), *([] if is_narrow else [decided_by]))
    return table


def _decisions(view: StepView) -> Table:
    table = compact_table("Decisions")
    table.add_column("request", overflow="ellipsis", max_width=24, no_wrap=True)
    table.add_column("position", justify="right")
    table.add_column("token", justify="right")
    table.add_column("text", overflow="ellipsis", no_wrap=True)
    table.add_column("gap", justify="right")
    table.add_column("fate")
    for decision in view.decisions:
        table.add_row(
            plain(decision.request),
            str(decision.position),
            str(decision.token),
            plain(f"'{decision.text}'"),
            "-" if decision.gap is None else f"{decision.gap:.4g}",
            "committed" if decision.is_committed else "rejected",
        )
    return table


def _events(view: StepView) -> Table:
    table = compact_table("Events")
    for name in ("event", "request", "detail"):
        table.add_column(name, overflow="fold")
    for event in view.events:
        table.add_row(plain(event.kind), plain(event.request), plain(event.detail))
    return table


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"
