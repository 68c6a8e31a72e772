"""Consecutive steps that did the same, as one record. Data only; no terminal."""

from __future__ import annotations

from dataclasses import dataclass, replace

from divtrace.align.index import TraceIndex
from divtrace.show.paths import PathGroup, PlanPaths
from divtrace.show.steps import kind_name
from divtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class AlikeSteps:
    """Consecutive steps with the same requests, kinds, row counts and plan. `forward_s` is their sum."""

    first: int
    last: int
    packed_rows: int
    head_rows: int
    waiting: int
    batch: tuple[tuple[str, str, int], ...]
    paths: tuple[PathGroup, ...]
    forward_s: float


def group_alike_steps(trace: Trace, first: int = 0, last: int | None = None) -> tuple[AlikeSteps, ...]:
    """Steps `first` to `last` (both included, None: to the end), runs of alike ones as one record."""
    index = TraceIndex(trace)
    paths = PlanPaths(trace)
    stop = trace.step_count if last is None else min(last + 1, trace.step_count)
    plans, packed, head, waiting = (
        index.column("steps", n).tolist() for n in ("plan", "packed_rows", "head_rows", "waiting")
    )
    offsets, counts = (index.column("steps", n).tolist() for n in ("segment_offset", "segment_count"))
    requests, kinds, rows = (index.column("segments", n).tolist() for n in ("request", "kind", "rows"))
    forward_s = trace.column("steps", "forward_s").tolist()
    groups: list[AlikeSteps] = []
    previous: object = None
    for step in range(max(first, 0), stop):
        span = slice(offsets[step], offsets[step] + counts[step])
        batch = tuple(zip(requests[span], kinds[span], rows[span], strict=True))
        key = (batch, plans[step], head[step], waiting[step])
        if key == previous:
            groups[-1] = replace(groups[-1], last=step, forward_s=groups[-1].forward_s + forward_s[step])
            continue
        previous = key
        named = tuple((index.request_ids[request], kind_name(kind), count) for request, kind, count in batch)
        shared = packed[step], head[step], waiting[step], named, paths.groups(plans[step])
        groups.append(AlikeSteps(step, step, *shared, forward_s[step]))
    return tuple(groups)
