"""Records of a proof, JSON-ready. `SCHEMA` names their version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCHEMA = "divtrace.proof/1"


class Direction(StrEnum):
    """Which run is changed. `restore`: run B takes A's paths. `induce`: run A takes B's paths."""

    RESTORE = "restore"
    INDUCE = "induce"


class Causality(StrEnum):
    """What the re-runs show.

    `one`: one candidate restores and induces. `either`: several suffice, each by itself. `joint`: the other token comes
    only when several act together. `necessary`: taking it away restores the token, but nothing tried brings the other.
    `none`: the token never changes, so the candidates differ and are not the cause. `untested`: nothing to test.
    """

    ONE = "one"
    EITHER = "either"
    JOINT = "joint"
    NECESSARY = "necessary"
    NONE = "none"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class Trial:
    """One counterfactual re-run: candidates (by index) forced to the other run's paths, and what was decided.

    `margin` is the processed logit of the run's own token minus that of the other run's token, None where either is not
    among the recorded top-k. `margin_without` is the same without any change: their difference is the measured effect.
    """

    direction: Direction
    candidates: tuple[int, ...]
    chosen_token: int
    own_token: int
    other_token: int
    margin: float | None
    margin_without: float | None
    steps: int
    elapsed_s: float

    @property
    def flips(self) -> bool:
        """True when the changed run decides as the other run did."""
        return self.chosen_token == self.other_token

    @property
    def drift(self) -> float | None:
        """How far the change moved the margin; None where it is not known."""
        if self.margin is None or self.margin_without is None:
            return None
        return self.margin - self.margin_without


@dataclass(frozen=True, slots=True)
class ReplayControl:
    """A run played back unchanged. Equal bits mean: same configuration, same result, so there is something to blame."""

    run: str
    is_equal: bool
    steps: int
    first_differing_step: int | None
    what: str
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class ProofResult:
    """Controls, every trial, and what they show. `cause` and `sufficient` hold indices of candidates.

    `cause`: the smallest set found that restores A's token in run B (necessary). `sufficient`: sets that, put into
    run A alone, bring B's token.
    """

    controls: tuple[ReplayControl, ...]
    trials: tuple[Trial, ...]
    causality: Causality
    cause: tuple[int, ...]
    sufficient: tuple[tuple[int, ...], ...]
    reruns: int
    note: str = ""
    schema: str = SCHEMA
