"""What a counterfactual re-run could change: pairs of steps whose paths differ, in the order of run B's
execution.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from divtrace.align.index import Integers
from divtrace.align.runs import RunPair
from divtrace.origin.records import Candidate, CandidateSite, Origin
from divtrace.origin.sites import SiteComparer


def find_candidates(
    runs: RunPair,
    sites: SiteComparer,
    records_a: Integers,
    records_b: Integers,
    origins: Iterable[Origin],
    decided: tuple[int, int],
) -> tuple[Candidate, ...]:
    """Pairs of steps that made these pairs of KV rows, those of the origins, and the decision's own,
    where paths differ.

    Every step pair appears once. A pair that computed nothing but equal rows is no candidate, so callers
    that know which rows differ pass only those.
    """
    from_origins = {(origin.step_b, origin.step_a) for origin in origins}
    made = np.unique(np.stack([runs.b.row_steps[records_b], runs.a.row_steps[records_a]], axis=1), axis=0)
    step_pairs = {(int(b), int(a)) for b, a in made} | from_origins | {(decided[1], decided[0])}
    found = []
    for step_b, step_a in sorted(step_pairs):
        changed = sites.paths_changed(step_a, step_b)
        if changed:
            named = tuple(CandidateSite(site.site, site.path_a, site.path_b) for site in changed)
            found.append(Candidate(step_a, step_b, named, (step_b, step_a) in from_origins))
    return tuple(found)
