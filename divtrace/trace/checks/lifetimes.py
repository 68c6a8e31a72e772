"""Every K/V row is written once per lifetime, and nothing is read that nobody wrote.

A lifetime begins when a request takes rows from the prefix cache or starts empty, and ends when it is preempted;
rejected draft rows are dropped at the end of their step and may be written again.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping

import numpy as np

from divtrace.trace.checks.finding import Finding, where_wrong
from divtrace.trace.reader import Trace

VERIFY_KIND = 2
PREEMPTED = "preempted"
_SEGMENT_COLUMNS = ("step", "request", "kind", "first_position", "rows", "proposed_tokens")


def check_lifetimes(trace: Trace) -> Iterator[Finding]:
    """Follow how many positions of each request hold K/V, segment by segment."""
    names = trace.request_ids()
    reused = _reused_lengths(trace)
    preemptions = _preemption_steps(trace)
    accepted = _accepted_tokens(trace)
    valid: dict[int, int] = defaultdict(int)
    columns = [trace.column("segments", name).tolist() for name in _SEGMENT_COLUMNS]
    for step, request, kind, first, rows, proposed in zip(*columns, strict=True):
        while preemptions[request] and preemptions[request][0] <= step:
            preemptions[request].popleft()
            valid[request] = 0
        valid[request] = max(valid[request], reused.get((step, request), 0))
        place = f"step {step}, request {names[request]!r}"
        if first > valid[request]:
            yield Finding(place, f"reads positions {valid[request]} to {first - 1}, which nobody wrote")
        elif first < valid[request]:
            yield Finding(place, f"writes positions {first} to {min(first + rows, valid[request]) - 1} a second time")
        kept = rows - proposed + accepted.get((step, request), 0) if kind == VERIFY_KIND else rows
        valid[request] = first + min(kept, rows)


def check_provenance(trace: Trace) -> Iterator[Finding]:
    """Every reused row names an earlier row that really is that request's row at that position."""
    writer_step = trace.column("reused", "writer_step").astype(np.int64)
    writer_row = trace.column("reused", "writer_row").astype(np.int64)
    if not len(writer_step):
        return
    yield from where_wrong("reused", writer_step > trace.column("reused", "step"), "was written after it was read")
    outside = writer_row >= trace.column("steps", "packed_rows")[writer_step]
    yield from where_wrong("reused", outside, "names a row that its step does not have")
    row = trace.column("steps", "row_offset")[writer_step].astype(np.int64) + np.where(outside, 0, writer_row)
    for column, claimed in (("request", "writer_request"), ("position", "position")):
        written = trace.column("rows", column)[np.minimum(row, trace.length("rows") - 1)]
        wrong = ~outside & (written != trace.column("reused", claimed))
        yield from where_wrong("reused", wrong, f"the row that it names has another {column}")


def _reused_lengths(trace: Trace) -> Mapping[tuple[int, int], int]:
    lengths: dict[tuple[int, int], int] = {}
    columns = (trace.column("reused", name).tolist() for name in ("step", "request", "position"))
    for step, request, position in zip(*columns, strict=True):
        lengths[step, request] = max(lengths.get((step, request), 0), position + 1)
    return lengths


def _preemption_steps(trace: Trace) -> dict[int, deque[int]]:
    steps: dict[int, deque[int]] = defaultdict(deque)
    columns = (trace.column("events", name).tolist() for name in ("step", "request", "kind_string"))
    for step, request, kind in zip(*columns, strict=True):
        if trace.string(kind) == PREEMPTED:
            steps[request].append(step)
    return steps


def _accepted_tokens(trace: Trace) -> Mapping[tuple[int, int], int]:
    columns = (trace.column("drafts", name).tolist() for name in ("step", "request", "accepted_tokens"))
    return {(step, request): accepted for step, request, accepted in zip(*columns, strict=True)}
