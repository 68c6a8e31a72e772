"""How many sites each step changed in the re-runs, so that the sums in their table can be followed."""

from __future__ import annotations

from divtrace.origin.records import OriginResult, SiteClass
from divtrace.proof.records import ProofResult
from divtrace.render.text import listed, name, steps_named

MOST_NAMED = 3


def site_counts(proof: ProofResult, origins: OriginResult) -> str:
    """`Sites a step: 210 in steps 2, 3, 4 and 5; 211 in steps 9 and 13 (the head, model.embed_tokens, too).`

    Empty where all steps changed equally many, and where a re-run did not change sites.
    """
    by_step: dict[int, set[str]] = {}
    for candidate in proof.candidates:
        by_step.setdefault(candidate.step_b, set()).update(site.site for site in candidate.sites)
    counts = sorted({len(sites) for sites in by_step.values()})
    if len(counts) < 2:
        return ""
    common = set.intersection(*by_step.values())
    with_head = _steps_with_head(origins)
    parts = []
    for count in counts:
        group = [step for step, sites in by_step.items() if len(sites) == count]
        more = set.union(*(by_step[step] for step in group)) - common
        names = listed(sorted(map(name, more)))
        what = f"the head, {names}," if len(more) == 1 and {*group} <= with_head else names
        also = f" ({what} too)" if 0 < len(more) <= MOST_NAMED else ""
        parts.append(f"{count:,} in {steps_named(group)}{also}")
    return f"Sites a step: {'; '.join(parts)}. Of several steps together the table gives the sum."


def _steps_with_head(origins: OriginResult) -> frozenset[int]:
    """Steps of B in which the output projection changed its kernel."""
    crossings = ((origin.step_b, crossing) for origin in origins.origins for crossing in origin.crossings)
    return frozenset(step for step, crossing in crossings if SiteClass.HEAD in crossing.site_classes)
