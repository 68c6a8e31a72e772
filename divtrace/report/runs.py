"""One run as columns for a page: steps, bars, plans, events. Must not know the other run."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from divtrace.align.index import SEGMENT_KINDS, TraceIndex
from divtrace.report.bars import read_bars
from divtrace.report.model import EventColumns, Floats, PlanPage, RunColumns, StepColumns, StringTable
from divtrace.report.page_text import page_text
from divtrace.show.paths import PlanPaths, main_path
from divtrace.show.steps import kind_name

_THRESHOLD = re.compile(r"threshold:(\d+)")
_OTHER_KINDS = 4


def read_run(index: TraceIndex, label: str, strings: StringTable) -> RunColumns:
    """Everything about one run that the page draws; `label` is `A` or `B`, empty for a run alone."""
    trace = index.trace
    plans, plan_of_step = _plans(index)
    blocks_total = index.column("steps", "blocks_total")
    return RunColumns(
        name=page_text(index.name),
        label=label,
        ending=trace.ending(),
        level=str(trace.header.level),
        requests=[page_text(name) for name in index.request_ids],
        steps=_steps(index, plan_of_step),
        bars=read_bars(index),
        kinds=(*SEGMENT_KINDS, *(kind_name(len(SEGMENT_KINDS) + extra) for extra in range(_OTHER_KINDS))),
        events=_events(index, strings),
        plans=plans,
        blocks_total=int(blocks_total.max(initial=0)),
        threshold=_threshold(plans),
    )


def rounded(values: Iterable[float], digits: int = 7) -> Floats:
    """Floats with as many digits as a float32 carries; None for what is not finite."""
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values]


def _steps(index: TraceIndex, plan_of_step: list[int]) -> StepColumns:
    seconds = index.trace.column("steps", "forward_s").tolist()
    return StepColumns(
        packed_rows=index.column("steps", "packed_rows").tolist(),
        head_rows=index.column("steps", "head_rows").tolist(),
        plan=plan_of_step,
        running=index.column("steps", "running").tolist(),
        waiting=index.column("steps", "waiting").tolist(),
        blocks_used=index.column("steps", "blocks_used").tolist(),
        forward_ms=rounded((1e3 * value for value in seconds), 4),
    )


def _plans(index: TraceIndex) -> tuple[list[PlanPage], list[int]]:
    """Distinct plans in order of use, and the place of each step's plan among them."""
    paths = PlanPaths(index.trace)
    places: dict[int, int] = {}
    pages: list[PlanPage] = []
    numbers = index.column("steps", "plan").tolist()
    for number in numbers:
        if number not in places:
            places[number] = len(pages)
            groups = paths.groups(number)
            pages.append(PlanPage(main_path(groups), tuple(g for g in groups if g.model != "draft")))
    return pages, [places[number] for number in numbers]


def _events(index: TraceIndex, strings: StringTable) -> EventColumns:
    trace = index.trace
    kinds, details = (index.column("events", name).tolist() for name in ("kind_string", "detail_string"))
    return EventColumns(
        step=index.column("events", "step").tolist(),
        request=index.column("events", "request").tolist(),
        kind=[strings.add(page_text(trace.string(kind))) for kind in kinds],
        detail=[strings.add(page_text(trace.string(detail))) for detail in details],
    )


def _threshold(plans: list[PlanPage]) -> int | None:
    """The limit that the rules of the linears name, where they name one and the same."""
    found = {
        int(match.group(1))
        for plan in plans
        for group in plan.groups
        if group.site_class not in ("attention", "head") and (match := _THRESHOLD.search(group.decided_by))
    }
    return found.pop() if len(found) == 1 else None
