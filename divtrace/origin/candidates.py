"""What a counterfactual re-run could change: pairs of steps whose paths differ, in the order of run B's
execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divtrace.align.index import Integers
from divtrace.align.runs import RunPair
from divtrace.origin.circumstances import circumstances_of, were_taken_over
from divtrace.origin.records import Candidate, CandidateSite, Origin
from divtrace.origin.sites import SiteComparer, classes_of


@dataclass(frozen=True, slots=True)
class Decided:
    """Who made the decision under question and when: request numbers and steps."""

    request_a: int
    step_a: int
    request_b: int
    step_b: int


def find_candidates(
    runs: RunPair,
    sites: SiteComparer,
    records_a: Integers,
    records_b: Integers,
    origins: Sequence[Origin],
    decided: Decided,
) -> tuple[Candidate, ...]:
    """Pairs of steps that made these pairs of KV rows, those of the origins, and the decision's own,
    where paths differ.

    Every step pair appears once. A pair that computed nothing but equal rows is no candidate, so callers
    that know which rows differ pass only those.
    """
    from_origins = {(origin.step_b, origin.step_a) for origin in origins}
    makers = _makers(runs, records_a, records_b)
    for origin in origins:
        numbers = runs.a.request_ids.index(origin.request_a), runs.b.request_ids.index(origin.request_b)
        makers.setdefault((origin.step_b, origin.step_a), numbers)
    makers.setdefault((decided.step_b, decided.step_a), (decided.request_a, decided.request_b))
    found = []
    for (step_b, step_a), (request_a, request_b) in sorted(makers.items()):
        changed = sites.paths_changed(step_a, step_b)
        if not changed:
            continue
        reused = were_taken_over(runs, (request_a, request_b), (decided.request_a, decided.request_b))
        found.append(
            Candidate(
                step_a,
                step_b,
                tuple(CandidateSite(site.site, site.path_a, site.path_b) for site in changed),
                (step_b, step_a) in from_origins,
                circumstances_of(runs, (request_a, step_a), (request_b, step_b), reused, changed),
                classes_of(changed),
            )
        )
    return tuple(found)


def _makers(runs: RunPair, records_a: Integers, records_b: Integers) -> dict[tuple[int, int], tuple[int, int]]:
    """(step in B, step in A) of each pair of records to the requests that computed it, the first where several did."""
    columns = [runs.b.row_steps[records_b], runs.a.row_steps[records_a]]
    columns += [runs.a.row_requests[records_a], runs.b.row_requests[records_b]]
    made = np.unique(np.stack(columns, axis=1), axis=0)
    makers: dict[tuple[int, int], tuple[int, int]] = {}
    for step_b, step_a, request_a, request_b in made.tolist():
        makers.setdefault((step_b, step_a), (request_a, request_b))
    return makers
