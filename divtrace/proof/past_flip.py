"""How the difference goes on behind the decision: both runs fed the same tokens, one row a step, logits compared.

Must not know candidates: a restored run is one with overrides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from divtrace.proof.base_run import BaseRun
from divtrace.replay.watchers import SeenDecision
from engine.kernels.policy import SiteOverride


@dataclass(frozen=True, slots=True)
class PositionDrift:
    """|logit in B - logit in A| over the vocabulary at one position, and whether both runs prefer the same token."""

    position: int
    largest: float
    median: float
    same_choice: bool


@dataclass(frozen=True, slots=True)
class PastFlip:
    """Drift from the decision on, both runs fed run A's tokens: of B as it was, and of B with the cause taken away.

    `restored` is empty where no cause was found. `asked` positions may be more than A's tokens, or memory, allowed.
    """

    asked: int
    positions: tuple[PositionDrift, ...]
    restored: tuple[PositionDrift, ...]

    @property
    def largest(self) -> float:
        """Largest drift of any logit at any position, 0 where nothing was measured."""
        return max((p.largest for p in self.positions), default=0.0)

    @property
    def median(self) -> float:
        """Median over positions of the median over the vocabulary, 0 where nothing was measured."""
        return float(np.median([p.median for p in self.positions])) if self.positions else 0.0


def measure_past_flip(a: BaseRun, b: BaseRun, positions: int, restoring: Sequence[SiteOverride] = ()) -> PastFlip:
    """Go on for `positions` tokens behind the decision. Both runs must have been played.

    Args:
        a: the run whose tokens are fed.
        b: the run to compare.
        positions: how many, 1 to `limits.MOST_POSITIONS`.
        restoring: overrides of `b` that take the cause away.
    """
    request = next(r for r in a.replayer.run.requests if r.id == a.deciding.request_id)
    fed = a.replayer.run.forced.outputs[request.id]
    decided = a.deciding.position - len(request.prompt)
    tokens = fed[: decided + 1 + positions]
    in_a = a.continue_alone(tokens, positions)
    in_b = b.continue_alone(tokens, positions)
    restored = b.continue_alone(tokens, positions, tuple(restoring)) if restoring else {}
    return PastFlip(positions, _drifts(in_a, in_b), _drifts(in_a, restored))


def _drifts(a: dict[int, SeenDecision], b: dict[int, SeenDecision]) -> tuple[PositionDrift, ...]:
    return tuple(_drift(position, a[position], b[position]) for position in sorted(a.keys() & b.keys()))


def _drift(position: int, a: SeenDecision, b: SeenDecision) -> PositionDrift:
    with np.errstate(invalid="ignore"):
        moved = np.abs(b.processed.astype(np.float64) - a.processed.astype(np.float64))
    finite = moved[np.isfinite(moved)]
    largest, median = (float(finite.max()), float(np.median(finite))) if finite.size else (0.0, 0.0)
    return PositionDrift(position, largest, median, a.chosen == b.chosen)
