"""Steps, segments and rows must describe the same batches. Must not know tokens or logits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from divtrace.recorder.hashing import digest_rows, digest_step
from divtrace.trace.checks.finding import Finding, where_wrong
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level

CHUNK_ROWS = 16384


def check_batches(trace: Trace) -> Iterator[Finding]:
    """Steps are numbered without gaps and own consecutive parts of their tables; segments tile their batch."""
    steps = trace.column("steps", "step")
    yield from where_wrong("steps", steps != np.arange(len(steps)), "step numbers have a gap")
    for offset, count, table in (
        ("segment_offset", "segment_count", "segments"),
        ("row_offset", "packed_rows", "rows"),
        ("sampled_offset", "sampled_count", "sampled"),
    ):
        counts = trace.column("steps", count).astype(np.int64)
        expected = np.cumsum(counts) - counts
        wrong = trace.column("steps", offset).astype(np.int64) != expected
        yield from where_wrong("steps", wrong, f"{offset} leaves a hole in {table} or overlaps another step")
        owners = trace.column(table, "step")
        if len(owners) != counts.sum():
            yield Finding(table, f"holds {len(owners)} rows, but the steps own {counts.sum()}")
        elif not wrong.any():
            misplaced = owners != np.repeat(np.arange(len(counts)), counts)
            yield from where_wrong(table, misplaced, "belongs to another step than its place says")
    yield from _check_segments(trace)


def _check_segments(trace: Trace) -> Iterator[Finding]:
    counts = trace.column("steps", "segment_count").astype(np.int64)
    rows = trace.column("segments", "rows").astype(np.int64)
    if counts.sum() != len(rows):
        return
    step_of = np.repeat(np.arange(len(counts)), counts)
    totals = np.bincount(step_of, rows, len(counts)).astype(np.int64)
    packed = trace.column("steps", "packed_rows")
    yield from where_wrong("steps", totals != packed, "its segments do not add up to packed_rows")
    before = np.cumsum(rows) - rows
    first_of_step = np.repeat((np.cumsum(totals) - totals), counts)
    wrong = trace.column("segments", "first_row") != before - first_of_step
    yield from where_wrong("segments", wrong, "does not begin where the segment before it ends")
    wanted = trace.column("segments", "wanted_logits")
    yield from where_wrong("segments", wanted > rows, "wants more logits than it has rows")
    heads = np.bincount(step_of, wanted, len(counts)).astype(np.int64)
    yield from where_wrong("steps", heads != trace.column("steps", "head_rows"), "head_rows is not what segments want")
    if not wrong.any() and (totals == packed).all() and rows.sum() == trace.length("rows"):
        yield from _check_rows(trace, rows)


def _check_rows(trace: Trace, rows: npt.NDArray[np.int64]) -> Iterator[Finding]:
    within = np.arange(rows.sum()) - np.repeat(np.cumsum(rows) - rows, rows)
    for column, of_segment in (("position", "first_position"), ("row", "first_row")):
        expected = np.repeat(trace.column("segments", of_segment).astype(np.int64), rows) + within
        wrong = trace.column("rows", column) != expected
        yield from where_wrong("rows", wrong, f"{column} is not what its segment says")
    wrong = trace.column("rows", "request") != np.repeat(trace.column("segments", "request"), rows)
    yield from where_wrong("rows", wrong, "request is not what its segment says")


def check_digests(trace: Trace) -> Iterator[Finding]:
    """Every row digest is the hash of the row's hashes, every step digest the hash of its rows' digests."""
    if not trace.header.level.includes(Level.KV):
        return
    start = 0
    for chunk in trace.iter_chunks("rows", ("digest", "key_hash", "value_hash"), CHUNK_ROWS):
        wrong = digest_rows(chunk["key_hash"], chunk["value_hash"]) != chunk["digest"]
        yield from where_wrong("rows", wrong, "its digest does not follow from its hashes", start)
        start += len(wrong)
    digests = trace.column("rows", "digest")
    ends = np.cumsum(trace.column("steps", "packed_rows").astype(np.int64))
    if not len(ends) or ends[-1] != len(digests):
        return
    expected = [digest_step(part) for part in np.split(digests, ends[:-1])]
    wrong = np.array(expected, np.uint64) != trace.column("steps", "digest")
    yield from where_wrong("steps", wrong, "its digest does not follow from its rows")
