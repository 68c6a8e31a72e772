"""Candidates that are one change: pairs of steps that share a step of either run. Pure.

One prefill in run B may stand against a dozen chunks of it in run A: that is one choice that differs, not twelve.
"""

from __future__ import annotations

from collections.abc import Sequence

from divtrace.origin.records import Candidate

Unit = tuple[int, ...]


def units_of(candidates: Sequence[Candidate]) -> tuple[Unit, ...]:
    """Indices of candidates that hang together by a step of A or B, in the order of their first candidate."""
    unit_of: dict[tuple[str, int], int] = {}
    units: list[list[int]] = []
    for index, candidate in enumerate(candidates):
        steps = ("A", candidate.step_a), ("B", candidate.step_b)
        joined = sorted({unit_of[step] for step in steps if step in unit_of})
        home = joined[0] if joined else len(units)
        if not joined:
            units.append([])
        for other in joined[1:]:
            units[home] += units[other]
            units[other] = []
            unit_of |= {step: home for step, unit in unit_of.items() if unit == other}
        units[home].append(index)
        unit_of |= dict.fromkeys(steps, home)
    return tuple(tuple(sorted(unit)) for unit in units if unit)
