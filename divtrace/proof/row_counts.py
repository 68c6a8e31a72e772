"""Candidates of the second kind: pairs of steps whose sites took the same path over other row counts.

A kernel that picks its own way by row count (`native`, one BLAS call) leaves no path to compare. What can be tested is
its dependence on rows: with a row-independent kernel in both runs, nothing of it is left. Must not run anything.
"""

from __future__ import annotations

import numpy as np

from divtrace.align.index import SegmentRecord, TraceIndex
from divtrace.align.runs import RunPair
from divtrace.origin.plans import Plans
from divtrace.origin.records import Candidate, CandidateSite, OriginResult
from divtrace.origin.sites import OwnRow, SiteComparer

FORCEABLE = frozenset({"linear", "head", "attention"})


def row_count_candidates(runs: RunPair, origins: OriginResult) -> tuple[Candidate, ...]:
    """Pairs of steps behind the decision whose sites differ in path or row count, in the order of run B's execution.

    They are the steps of the origins, those that computed differing rows of the blamed request, and the decision's own.
    """
    of_origins = {(origin.step_b, origin.step_a) for origin in origins.origins}
    pairs = of_origins | _differing_steps(runs, origins) | {(origins.step_b, origins.step_a)}
    comparer = SiteComparer(Plans(runs.a), Plans(runs.b))
    found = []
    for step_b, step_a in sorted(pairs):
        operations = {name: site.operation for name, site in comparer.a.sites(step_a).items()}
        changed = comparer.changed(step_a, step_b, _own_rows(runs, origins, step_a, step_b))
        sites = tuple(
            CandidateSite(site.site, site.path_a, site.path_b) for site in changed if operations[site.site] in FORCEABLE
        )
        if sites:
            found.append(Candidate(step_a, step_b, sites, (step_b, step_a) in of_origins))
    return tuple(found)


def _differing_steps(runs: RunPair, origins: OriginResult) -> set[tuple[int, int]]:
    """Steps (of B, of A) that computed rows of the blamed request that differ."""
    if not runs.can_compare_rows:
        return set()
    requests = runs.a.request_ids.index(origins.request_a), runs.b.request_ids.index(origins.request_b)
    a = runs.memory_a.seen_by(requests[0], origins.position, origins.step_a)
    b = runs.memory_b.seen_by(requests[1], origins.position, origins.step_b)
    both = np.flatnonzero(a.known & b.known)
    records_a, records_b = a.records[both], b.records[both]
    differs = runs.a.row_digests[records_a] != runs.b.row_digests[records_b]
    steps_a, steps_b = runs.a.row_steps[records_a[differs]], runs.b.row_steps[records_b[differs]]
    return set(zip(steps_b.tolist(), steps_a.tolist(), strict=True))


def _own_rows(runs: RunPair, origins: OriginResult, step_a: int, step_b: int) -> tuple[OwnRow, OwnRow] | None:
    """Where both steps computed the first position of the request that they have in common; None without one."""
    of_a = _segments(runs.a, step_a, origins.request_a)
    of_b = _segments(runs.b, step_b, origins.request_b)
    if not of_a or not of_b:
        return None
    position = max(of_a[0].first_position, of_b[0].first_position)
    found = [_own_row(segment, position) for segment in (of_a[0], of_b[0])]
    return (found[0], found[1]) if found[0] and found[1] else None


def _segments(index: TraceIndex, step: int, request: str) -> list[SegmentRecord]:
    return [s for s in index.segments_of_step(step) if index.request_ids[s.request] == request]


def _own_row(segment: SegmentRecord, position: int) -> OwnRow | None:
    inside = position - segment.first_position
    return OwnRow(segment.rows, inside, segment.first_row + inside) if inside < segment.rows else None
