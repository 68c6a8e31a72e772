"""Records of a proof, JSON-ready. `SCHEMA` names their version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from divtrace.origin.records import Candidate

SCHEMA = "divtrace.proof/1"


class Direction(StrEnum):
    """Which run is changed. `restore`: run B becomes like A. `induce`: run A becomes like B."""

    RESTORE = "restore"
    INDUCE = "induce"


class Method(StrEnum):
    """What is changed at a candidate. `path`: its sites take the other run's kernels. `rows`: paths stay, and the K/V
    rows that the step wrote are replaced by those that the other run's step wrote for the same positions.
    """

    PATH = "path"
    ROWS = "rows"


class Subject(StrEnum):
    """What the candidates are. `paths`: sites whose path differs. `row counts`: sites of equal path and other rows."""

    PATHS = "paths"
    ROW_COUNTS = "row counts"


class Outcome(StrEnum):
    """What a re-run is held against: the other run's token, or its deciding logits, bit for bit.

    It is the logits where both runs chose one token, and where a playback cannot make the choice (rejection sampling).
    """

    TOKEN = "token"
    LOGITS = "logits"


class Causality(StrEnum):
    """What the re-runs show.

    `one`: one candidate restores and induces. `either`: several suffice, each by itself. `joint`: the other outcome
    comes only when several act together. `necessary`: taking it away restores the outcome, but nothing tried brings the
    other. `none`: the outcome never changes, so the candidates differ and are not the cause. `untested`: nothing to
    test.
    """

    ONE = "one"
    EITHER = "either"
    JOINT = "joint"
    NECESSARY = "necessary"
    NONE = "none"
    UNTESTED = "untested"


@dataclass(frozen=True, slots=True)
class Trial:
    """One counterfactual re-run: candidates (by index) made like the other run, and what was decided.

    `same_logits` tells whether the deciding logits are those of the other run; None where its trace has no hash of
    them. `margin` is the processed logit of the run's own token minus that of its rival (the other run's token, else
    its own runner-up), `margin_without` the same without any change: their difference is the measured effect. `steps`
    counts the steps that were computed.
    """

    direction: Direction
    method: Method
    candidates: tuple[int, ...]
    chosen_token: int
    own_token: int
    other_token: int
    same_logits: bool | None
    margin: float | None
    margin_without: float | None
    steps: int
    elapsed_s: float
    outcome: Outcome = Outcome.TOKEN

    @property
    def flips(self) -> bool:
        """True when the changed run comes out as the other run did."""
        if self.outcome is Outcome.LOGITS:
            return self.same_logits is True
        return self.chosen_token == self.other_token

    @property
    def drift(self) -> float | None:
        """How far the change moved the margin; None where it is not known."""
        if self.margin is None or self.margin_without is None:
            return None
        return self.margin - self.margin_without


@dataclass(frozen=True, slots=True)
class NeutralTrial:
    """Both runs re-run with row-independent kernels (gemv, one query a call) at the candidates.

    `agree` tells that they then come out alike: the same token, or the same deciding logits where the tokens never
    differed. `same_logits` tells that the deciding logits are equal bit for bit.
    """

    candidates: tuple[int, ...]
    token_a: int
    token_b: int
    same_logits: bool
    agree: bool
    steps: int
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class ReplayControl:
    """A run played back unchanged. Equal bits mean: same configuration, same result, so there is something to blame.

    `margin` is the own token's processed logit minus its rival's at the deciding step of this replay.
    """

    run: str
    is_equal: bool
    steps: int
    first_differing_step: int | None
    what: str
    margin: float | None
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class ProofResult:
    """Controls, every trial, and what they show. Numbers in it are indices of `candidates`; those that share a step of
    either run are one change, and count as one in `causality`.

    `cause`: the smallest set found that restores A's outcome in run B (necessary). `sufficient`: sets that, put into
    run A alone, bring B's outcome. `swap_agrees`: whether swapping the K/V rows of these sets came out as changing
    their paths did; None where rows cannot be swapped. `reruns` counts playbacks of this proof, controls included,
    and those that an interrupted proof had made before.
    """

    subject: Subject
    candidates: tuple[Candidate, ...]
    controls: tuple[ReplayControl, ...]
    trials: tuple[Trial, ...]
    neutral_trials: tuple[NeutralTrial, ...]
    causality: Causality
    cause: tuple[int, ...]
    sufficient: tuple[tuple[int, ...], ...]
    swap_agrees: bool | None
    reruns: int
    note: str = ""
    schema: str = SCHEMA
