"""The batch of an origin as people name it: segments, who joined, which row count crossed which threshold."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from divtrace.align.index import SegmentRecord, TraceIndex
from divtrace.align.runs import RunPair
from divtrace.origin.records import (
    BatchRecord,
    BatchSegment,
    Crossing,
    JoinedSegment,
    Neighbour,
    SiteClass,
    SiteComparison,
)
from divtrace.origin.sites import classes_of

_THRESHOLD = re.compile(r"threshold:(\d+)$")


def batch_record(index: TraceIndex, step: int) -> BatchRecord:
    """The batch of `step` with everything a kernel selector could have seen of it."""
    return BatchRecord(
        step=step,
        packed_rows=_cell(index, "packed_rows", step),
        head_rows=_cell(index, "head_rows", step),
        max_query_length=_cell(index, "max_query_length", step),
        max_key_length=_cell(index, "max_key_length", step),
        segments=tuple(_segment(index, segment) for segment in index.segments_of_step(step)),
    )


def own_segment(index: TraceIndex, step: int, request: int) -> SegmentRecord | None:
    """The segment of `request` in `step`, None where it has none."""
    return next((s for s in index.segments_of_step(step) if s.request == request), None)


def find_crossings(
    runs: RunPair, a: BatchRecord, b: BatchRecord, own: tuple[str, str], sites: Iterable[SiteComparison]
) -> tuple[Crossing, ...]:
    """Group the sites whose path changed by what the selector saw, and name the segments that made the
    difference.

    `own` is the blamed request's id in A and in B: its segment did not join anything.
    """
    groups: Mapping[tuple[str, str, int, int, str], list[SiteComparison]] = defaultdict(list)
    for site in sites:
        if site.changed == "path":
            rule = site.decided_by_b if _THRESHOLD.match(site.decided_by_b) else site.decided_by_a
            groups[site.path_a, site.path_b, site.rows_a, site.rows_b, rule].append(site)
    return tuple(_crossing(runs, a, b, own, members) for members in groups.values())


def _crossing(
    runs: RunPair, a: BatchRecord, b: BatchRecord, own: tuple[str, str], sites: Sequence[SiteComparison]
) -> Crossing:
    first = sites[0]
    rule = first.decided_by_b if _THRESHOLD.match(first.decided_by_b) else first.decided_by_a
    found = _THRESHOLD.match(rule)
    over = "B" if first.rows_b >= first.rows_a else "A"
    is_head = first.site_class is SiteClass.HEAD
    names = {pair.id_b: pair.id_a for pair in runs.pairing.pairs}
    larger, smaller = (b, a) if over == "B" else (a, b)
    joined = _joined(larger, smaller, names, own, is_head)
    rows = first.rows_b if over == "B" else first.rows_a
    return Crossing(
        site_classes=classes_of(sites),
        sites=len(sites),
        path_a=first.path_a,
        path_b=first.path_b,
        rows_a=first.rows_a,
        rows_b=first.rows_b,
        rule=rule,
        limit=int(found.group(1)) if found else None,
        over=over,
        joined=joined,
        rows_without_joined=rows - sum(segment.rows for segment in joined),
    )


def _joined(
    larger: BatchRecord, smaller: BatchRecord, names: Mapping[str, str], own: tuple[str, str], is_head: bool
) -> tuple[JoinedSegment, ...]:
    """Segments of other requests in the larger batch that the smaller one lacks, with the rows they add."""
    present = {(names.get(s.request, s.request), _rows(s, is_head)) for s in smaller.segments}
    return tuple(
        JoinedSegment(segment.request, segment.kind, _rows(segment, is_head))
        for segment in larger.segments
        if segment.request not in own
        and _rows(segment, is_head) > 0
        and (names.get(segment.request, segment.request), _rows(segment, is_head)) not in present
    )


def find_neighbours(
    batches: Iterable[tuple[str, BatchRecord]], own: tuple[str, str], decided: tuple[int, int]
) -> tuple[Neighbour, ...]:
    """Other requests of these batches (by run), each once, and whether they had ended before the
    decision's step.
    """
    found: dict[tuple[str, str], Neighbour] = {}
    for run, batch in batches:
        mine, step = (own[0], decided[0]) if run == "A" else (own[1], decided[1])
        for segment in batch.segments:
            if segment.request != mine:
                finished = segment.finished_step
                before = finished is not None and finished < step
                found.setdefault((run, segment.request), Neighbour(segment.request, run, finished, before))
    return tuple(found.values())


def _rows(segment: BatchSegment, is_head: bool) -> int:
    return segment.wanted_logits if is_head else segment.rows


def _segment(index: TraceIndex, segment: SegmentRecord) -> BatchSegment:
    finished = index.finished_steps.get(segment.request)
    return BatchSegment(
        request=index.request_ids[segment.request],
        kind=segment.kind,
        first_position=segment.first_position,
        rows=segment.rows,
        wanted_logits=segment.wanted_logits,
        cached_tokens=segment.cached_tokens,
        finished_step=finished[0] if finished else None,
    )


def _cell(index: TraceIndex, column: str, step: int) -> int:
    return int(index.trace.column("steps", column, step, step + 1)[0])
