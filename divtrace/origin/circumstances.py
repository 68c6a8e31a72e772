"""What was special about two steps that should have computed the same rows: company, prefix hit, recompute, chunks."""

from __future__ import annotations

from collections.abc import Iterable

from divtrace.align.runs import RunPair
from divtrace.origin.batches import own_segment
from divtrace.origin.records import Circumstance, SiteComparison

Computed = tuple[int, int]
"""Request number and step of whoever computed the rows."""


def were_taken_over(runs: RunPair, makers: tuple[int, int], decided: tuple[int, int]) -> bool:
    """True when another request computed rows in one run than in the other; numbers in A and B, and of the decision."""
    same_maker = runs.a.request_ids[makers[0]] == runs.b.request_ids[makers[1]]
    return not same_maker and makers != decided


def circumstances_of(
    runs: RunPair, a: Computed, b: Computed, reused: bool, changed: Iterable[SiteComparison]
) -> tuple[Circumstance, ...]:
    """Circumstances of rows that `a` computed in run A and `b` in run B; `changed` are sites whose path differs.

    `reused`: one run took the rows over instead of computing them for the request that is explained.
    """
    left, right = own_segment(runs.a, a[1], a[0]), own_segment(runs.b, b[1], b[0])
    if left is None or right is None:
        return ()
    kinds = {left.kind, right.kind}
    alone = all(len(index.segments_of_step(step)) == 1 for index, step in ((runs.a, a[1]), (runs.b, b[1])))
    same_bounds = (left.first_position, left.rows) == (right.first_position, right.rows)
    hit = left.cached_tokens != right.cached_tokens
    found = {
        Circumstance.SHARED_BATCH: not alone,
        Circumstance.PREFIX_REUSE: reused or hit,
        Circumstance.RECOMPUTE: "recompute" in kinds and not (len(kinds) == 1 and same_bounds),
        Circumstance.CHUNK_BOUNDARY: kinds <= {"prefill", "recompute"} and not same_bounds and not hit,
        Circumstance.SPECULATION: "verify" in kinds,
        Circumstance.OTHER_RULE: any(site.decided_by_a != site.decided_by_b for site in changed),
    }
    return tuple(circumstance for circumstance, holds in found.items() if holds)
