"""The events of one run for a trace viewer: a process a run, a thread for the engine and one a request, counters.

Slices of a thread only nest and never overlap, which is what viewers ask of complete events (`ph` is X). Times are in
microseconds. Format: "Trace Event Format", https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from divtrace.export.clock import PHASES, StepClock, read_clock
from divtrace.render.text import visible
from divtrace.show.paths import PlanPaths, main_path
from divtrace.show.steps import kind_name
from divtrace.trace.reader import Trace

Event = dict[str, Any]
ENGINE_THREAD = 1
FIRST_REQUEST_THREAD = 100
PHASE_NAMES = {"schedule": "schedule", "draft": "draft", "forward": "target forward", "sample": "sample"}
_COUNTERS = {
    "packed rows": {"rows": "packed_rows"},
    "head rows": {"rows": "head_rows"},
    "KV blocks": {"used": "blocks_used", "cached": "blocks_cached"},
    "requests": {"running": "running", "waiting": "waiting"},
}
_SEGMENT_COLUMNS = (
    "step",
    "request",
    "kind",
    "first_position",
    "rows",
    "cached_tokens",
    "wanted_logits",
    "proposed_tokens",
)


def run_events(trace: Trace, process: int, name: str) -> Iterator[Event]:
    """All events of a run: names first, then steps, segments, counters and marks."""
    clock = read_clock(trace)
    requests = [visible(request) for request in trace.request_ids()]
    yield from _names(process, name, requests)
    yield from _steps(trace, clock, process)
    yield from _segments(trace, clock, process)
    yield from _counters(trace, clock, process)
    yield from _marks(trace, clock, process)


def _names(process: int, name: str, requests: list[str]) -> Iterator[Event]:
    yield _metadata("process_name", process, ENGINE_THREAD, name=name)
    yield _metadata("process_sort_index", process, ENGINE_THREAD, sort_index=process)
    for thread, label in ((ENGINE_THREAD, "engine"), *enumerate(requests, FIRST_REQUEST_THREAD)):
        yield _metadata("thread_name", process, thread, name=label)
        yield _metadata("thread_sort_index", process, thread, sort_index=thread)


def _metadata(kind: str, process: int, thread: int, **arguments: Any) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "ts": 0, "args": arguments}


def _steps(trace: Trace, clock: StepClock, process: int) -> Iterator[Event]:
    plans = PlanPaths(trace)
    names = ("packed_rows", "head_rows", "max_query_length", "max_key_length", "plan")
    columns = zip(*(trace.column("steps", name).tolist() for name in names), strict=True)
    draft_rows = _draft_rows(trace)
    starts, phases = clock.starts_ns.tolist(), clock.phases_ns.tolist()
    for step, (packed, head, query, key, plan) in enumerate(columns):
        start = starts[step]
        arguments = {
            "step": step,
            "packed_rows": packed,
            "head_rows": head,
            "max_query_length": query,
            "max_key_length": key,
            "path": visible(main_path(plans.groups(plan))),
        }
        yield _slice(f"step {step}", "step", process, ENGINE_THREAD, start, starts[step + 1] - start, arguments)
        for phase, duration in zip(PHASES, phases[step], strict=True):
            if duration:
                forwards = {"packed_rows": draft_rows[step]} if phase == "draft" and step in draft_rows else {}
                yield _slice(PHASE_NAMES[phase], "phase", process, ENGINE_THREAD, start, duration, forwards)
            start += duration


def _draft_rows(trace: Trace) -> dict[int, list[int]]:
    """Step to the packed rows of each of its draft forwards."""
    rows: dict[int, list[int]] = defaultdict(list)
    columns = (trace.column("draft_forwards", name).tolist() for name in ("step", "packed_rows"))
    for step, packed in zip(*columns, strict=True):
        rows[step].append(packed)
    return rows


def _segments(trace: Trace, clock: StepClock, process: int) -> Iterator[Event]:
    starts = clock.starts_ns.tolist()
    for chunk in trace.iter_chunks("segments", _SEGMENT_COLUMNS):
        for row in zip(*(chunk[name].tolist() for name in _SEGMENT_COLUMNS), strict=True):
            step, request, kind, position, rows, cached, logits, proposed = row
            arguments = {
                "step": step,
                "first_position": position,
                "rows": rows,
                "wanted_logits": logits,
                "cached_tokens": cached,
                "proposed_tokens": proposed,
            }
            thread = FIRST_REQUEST_THREAD + request
            duration = starts[step + 1] - starts[step]
            yield _slice(kind_name(kind), "segment", process, thread, starts[step], duration, arguments)


def _counters(trace: Trace, clock: StepClock, process: int) -> Iterator[Event]:
    starts = clock.starts_ns.tolist()
    is_paged = bool(trace.column("steps", "blocks_total").any())
    for name, series in _COUNTERS.items():
        if name == "KV blocks" and not is_paged:
            continue
        columns = zip(*(trace.column("steps", column).tolist() for column in series.values()), strict=True)
        for start, values in zip(starts, columns, strict=False):
            yield _counter(name, process, start, dict(zip(series, values, strict=True)))
        yield _counter(name, process, starts[-1], dict.fromkeys(series, 0))


def _counter(name: str, process: int, at_ns: int, values: dict[str, int]) -> Event:
    return {"ph": "C", "name": name, "pid": process, "tid": ENGINE_THREAD, "ts": at_ns / 1e3, "args": values}


def _marks(trace: Trace, clock: StepClock, process: int) -> Iterator[Event]:
    names = ("step", "request", "kind_string", "detail_string")
    starts = clock.starts_ns.tolist()
    for step, request, kind, detail in zip(*(trace.column("events", name).tolist() for name in names), strict=True):
        words = trace.string(kind)
        # A request is admitted or preempted before its step computes, and ends after it.
        at_ns = starts[step] if words in ("admitted", "preempted") else starts[step + 1]
        yield {
            "ph": "i",
            "s": "t",
            "name": visible(words),
            "cat": "lifecycle",
            "pid": process,
            "tid": FIRST_REQUEST_THREAD + request,
            "ts": at_ns / 1e3,
            "args": {"step": step, "detail": visible(trace.string(detail))},
        }


def _slice(
    name: str, category: str, process: int, thread: int, start_ns: int, duration_ns: int, arguments: Event
) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": process,
        "tid": thread,
        "ts": start_ns / 1e3,
        "dur": duration_ns / 1e3,
        "args": arguments,
    }
