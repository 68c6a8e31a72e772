"""Small statistics for repeated measurements. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeVar

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and sample standard deviation of repeated measurements; the deviation of one measurement is 0."""

    mean: float
    deviation: float
    count: int

    def __str__(self) -> str:
        return f"{self.mean:.4g}" if self.count < 2 else f"{self.mean:.4g} ± {self.deviation:.2g}"


def spread(values: Sequence[float]) -> Spread:
    """Mean and deviation of at least one value.

    Raises:
        ValueError: there is none.
    """
    if not values:
        raise ValueError("nothing was measured, so there is no mean")
    return Spread(fmean(values), stdev(values) if len(values) > 1 else 0.0, len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least `percent` % of the values do not exceed (nearest rank).

    Raises:
        ValueError: there is no value, or `percent` is not in (0, 100].
    """
    if not values or not 0.0 < percent <= 100.0:
        raise ValueError(f"percentile {percent} of {len(values)} values is undefined")
    return sorted(values)[math.ceil(percent / 100.0 * len(values)) - 1]


def interleave(arms: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """Run every arm once a round, so that a machine's slow minute hits all of them; results by arm, in order."""
    results: dict[str, list[Result]] = {name: [] for name in arms}
    for _ in range(rounds):
        for name, arm in arms.items():
            results[name].append(arm())
    return results
