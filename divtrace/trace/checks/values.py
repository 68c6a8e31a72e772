"""Values that the format allows, and sums and flags that follow from other tables. Must not know choices."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from divtrace.trace.checks.finding import Finding, where_wrong
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level

LARGEST_KIND = 3
LOGITS_FLAG, KV_FLAG, AUDIT_FLAG = 1, 2, 4
REASONS = ("length", "stop", "cancelled", "timeout", "refused", "error")
EVENT_KINDS = ("admitted", "preempted", "finished", "cancelled", "refused", "timed_out", "failed")
CHUNK_ROWS = 16384


def check_values(trace: Trace) -> Iterator[Finding]:
    """Codes, names and probabilities are ones that the format has; requests have ids of their own and end once."""
    yield from where_wrong("segments", trace.column("segments", "kind") > LARGEST_KIND, "no such kind")
    yield from where_wrong("sampled", trace.column("sampled", "committed") > 1, "committed is neither 0 nor 1")
    drawn = trace.column("sampled", "random_number")
    yield from where_wrong("sampled", (drawn < 0) | (drawn >= 1), "random_number is not from 0 to 1")
    chosen = trace.column("sampled", "chosen")
    yield from where_wrong("sampled", chosen >= trace.header.vocabulary_size, "chosen: no such token")
    for table, column, allowed in (("completions", "reason_string", REASONS), ("events", "kind_string", EVENT_KINDS)):
        yield from where_wrong(table, ~_are_among(trace, table, column, allowed), f"{column}: no such word")
    for table, column in (("requests", "id_string"), ("completions", "request")):
        yield from where_wrong(table, _repeats(trace.column(table, column)), f"{column} occurs twice")
    texts = {int(index): trace.string(int(index)) for index in np.unique(trace.column("requests", "settings_string"))}
    broken = [not _is_object(texts[int(index)]) for index in trace.column("requests", "settings_string")]
    yield from where_wrong("requests", broken, "its settings are not a JSON object with sampling")
    if trace.clean_end:
        promised = trace.column("footer", "step_count")
        yield from where_wrong("footer", promised != trace.step_count, "step_count is not the number of steps")


def check_sums(trace: Trace) -> Iterator[Finding]:
    """Batch-wide maxima, rows of the sites of a plan, and the pool follow from the batch; times do not run back."""
    step = trace.column("segments", "step").astype(np.int64)
    rows = trace.column("segments", "rows").astype(np.int64)
    ends = trace.column("segments", "first_position").astype(np.int64) + rows
    for column, of_segments in (("max_query_length", rows), ("max_key_length", ends)):
        largest = np.zeros(trace.step_count, np.int64)
        np.maximum.at(largest, step, of_segments)
        wrong = largest != trace.column("steps", column)
        yield from where_wrong("steps", wrong, f"{column} is not that of its segments")
    total, used = (trace.column("steps", name) for name in ("blocks_total", "blocks_used"))
    yield from where_wrong("steps", (total > 0) & (used > total), "uses more K/V blocks than there are")
    for column in ("schedule_s", "draft_s", "forward_s", "sample_s"):
        yield from where_wrong("steps", ~(trace.column("steps", column) >= 0), f"{column} is no time")
    yield from _check_plans(trace)


def check_flags(trace: Trace) -> Iterator[Finding]:
    """A step is flagged when its audit failed, or when its K/V or logits hold NaN or Inf."""
    flags = trace.column("steps", "flags")
    known = LOGITS_FLAG | KV_FLAG | AUDIT_FLAG
    yield from where_wrong("steps", (flags & ~np.uint32(known)) > 0, "flags: no such flag")
    audited = np.isin(np.arange(len(flags)), trace.column("audits", "step"))
    wrong = audited != ((flags & AUDIT_FLAG) > 0)
    yield from where_wrong("steps", wrong, "flags and audits do not agree on whether its audit failed")
    if trace.header.level.includes(Level.LOGITS):
        spoiled = ~np.isfinite(trace.column("sampled", "top_values")).all(axis=1)
        wrong = _steps_with(trace, "sampled", spoiled) & ((flags & LOGITS_FLAG) == 0)
        yield from where_wrong("steps", wrong, "its logits hold NaN or Inf, and no flag says so")
    if trace.header.level.includes(Level.KV):
        magnitudes = ("key_magnitude", "value_magnitude")
        parts = [
            ~np.isfinite(np.concatenate([chunk[name] for name in magnitudes], axis=1)).all(axis=1)
            for chunk in trace.iter_chunks("rows", magnitudes, CHUNK_ROWS)
        ]
        spoiled = np.concatenate([np.zeros(0, np.bool_), *parts])
        wrong = _steps_with(trace, "rows", spoiled) != ((flags & KV_FLAG) > 0)
        yield from where_wrong("steps", wrong, "flags and magnitudes do not agree on NaN or Inf in its K/V")


def _check_plans(trace: Trace) -> Iterator[Finding]:
    """Linears and attention of the target run on the packed rows of every step with that plan."""
    operations, models, rows = (
        trace.column("plan_sites", name) for name in ("operation_string", "model_string", "rows")
    )
    packed = _equal(trace, models, ("target",)) & _equal(trace, operations, ("linear", "attention"))
    first, count = (trace.column("plans", name).astype(np.int64) for name in ("site_offset", "site_count"))
    steps = np.stack([trace.column("steps", name) for name in ("plan", "packed_rows")], axis=1)
    for plan, packed_rows in np.unique(steps, axis=0).tolist():
        own = slice(first[plan], first[plan] + count[plan])
        if (packed[own] & (rows[own] != packed_rows)).any():
            step = int(np.flatnonzero((steps == (plan, packed_rows)).all(axis=1))[0])
            yield Finding(f"step {step}", "the sites of its plan have other row counts than the step")


def _is_object(settings: str) -> bool:
    try:
        parsed = json.loads(settings)
    except (ValueError, RecursionError):
        return False
    return isinstance(parsed, dict) and isinstance(parsed.get("sampling"), dict)


def _steps_with(trace: Trace, table: str, marked: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    return np.isin(np.arange(trace.step_count), trace.column(table, "step")[marked])


def _are_among(trace: Trace, table: str, column: str, words: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    return _equal(trace, trace.column(table, column), words)


def _equal(trace: Trace, indices: npt.NDArray[np.uint32], words: tuple[str, ...]) -> npt.NDArray[np.bool_]:
    return np.isin(indices, [index for index in np.unique(indices) if trace.string(int(index)) in words])


def _repeats(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    repeated = np.ones(len(values), np.bool_)
    repeated[np.unique(values, return_index=True)[1]] = False
    return repeated
