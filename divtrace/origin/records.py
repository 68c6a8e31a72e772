"""Records of the backward walk, JSON-ready through pydantic. `SCHEMA` names their version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from divtrace.divergence.records import Ending, Token, TokenDivergence

SCHEMA = "divtrace.origin/1"


class SiteClass(StrEnum):
    """Which part of a layer a site belongs to."""

    EMBEDDING = "embedding"
    QKV = "qkv"
    ATTENTION = "attention"
    OUTPUT_PROJECTION = "output projection"
    MLP = "mlp"
    HEAD = "head"
    OTHER = "other"


class OriginKind(StrEnum):
    """What the trace shows about why equal inputs gave different outputs."""

    KERNEL_PATH = "kernel path"
    SELECTOR_INPUT = "selector input"
    WRONG_INPUT = "wrong input"
    NEVER_WRITTEN = "never written"
    CHANGED_AFTER_WRITING = "changed after writing"
    SELECTION = "selection"
    NOT_FINITE = "not finite"
    UNEXPLAINED = "unexplained"


class Circumstance(StrEnum):
    """How the origin's rows came to be computed differently, where that is visible.

    `other rule`: a path that changed was decided by another rule in each run, so no row count can have decided it.
    """

    SHARED_BATCH = "shared batch"
    PREFIX_REUSE = "prefix reuse"
    RECOMPUTE = "recompute"
    CHUNK_BOUNDARY = "chunk boundary"
    SPECULATION = "speculation"
    OTHER_RULE = "other rule"


@dataclass(frozen=True, slots=True)
class BatchSegment:
    """One segment of an origin's batch; `finished_step` is when its request ended in that run, None if it
    did not.
    """

    request: str
    kind: str
    first_position: int
    rows: int
    wanted_logits: int
    cached_tokens: int
    finished_step: int | None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """The batch of one step of one run."""

    step: int
    packed_rows: int
    head_rows: int
    max_query_length: int
    max_key_length: int
    segments: tuple[BatchSegment, ...]


@dataclass(frozen=True, slots=True)
class SiteComparison:
    """One site in the two steps. `changed` is `path`; or, where the path's name is equal, `rows` for another row count,
    else `place` for another place of the row in the call.

    Rows are those of the call; for attention those of the request's own segment.
    """

    site: str
    site_class: SiteClass
    layer: int | None
    path_a: str
    path_b: str
    rows_a: int
    rows_b: int
    decided_by_a: str
    decided_by_b: str
    changed: str


@dataclass(frozen=True, slots=True)
class JoinedSegment:
    """A segment that only one of the two batches holds (or holds with other rows); `rows` are those it
    adds to the call.
    """

    request: str
    kind: str
    rows: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """Sites that took another path for the same reason, and the selector input that moved them over the
    edge.

    `limit` is the rule's threshold, None for rules without one. `over` is the run with more rows than the
    limit (with more rows, where there is no limit). `rows_without_joined` is that run's row count less
    the joined segments.
    """

    site_classes: tuple[SiteClass, ...]
    sites: int
    path_a: str
    path_b: str
    rows_a: int
    rows_b: int
    rule: str
    limit: int | None
    over: str
    joined: tuple[JoinedSegment, ...]
    rows_without_joined: int


@dataclass(frozen=True, slots=True)
class PositionRange:
    """Positions `first .. last`, both included."""

    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Drift:
    """How far the largest element of a K or V row moved in the origin's layer: absolute, and over its
    size in run A.
    """

    magnitude: float
    relative: float


@dataclass(frozen=True, slots=True)
class InputFault:
    """A KV row that does not belong where it was read: what was expected there and what was found.

    `run` is `A` or `B`; `kind` is `wrong token`, `wrong position`, `never written` or `changed`; `layer`
    only for changed.
    """

    run: str
    kind: str
    request: str
    position: int
    step: int
    layer: int | None
    expected: str
    found: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Rows of one pair of steps whose outputs differ while all their inputs are equal.

    `request_a` and `request_b` computed them: where a prefix was reused, not the blamed request. `layer`
    is the lowest that differs, equal to the number of layers for the logits; `tensor` is key, value,
    both, logits or token. `suspects` are the sites between the last equal and the first differing record
    whose path or row count changed; `site_classes` the classes of the suspects, else of all sites in
    between. `crossings` cover every changed site of the step. `packed_row_a` and `packed_row_b` are where
    the first differing row lay in each batch.
    """

    kind: OriginKind
    step_a: int
    step_b: int
    request_a: str
    request_b: str
    batch_a: BatchRecord
    batch_b: BatchRecord
    layer: int
    tensor: str
    positions: tuple[PositionRange, ...]
    rows: int
    site_classes: tuple[SiteClass, ...]
    suspects: tuple[SiteComparison, ...]
    crossings: tuple[Crossing, ...]
    drift: Drift | None
    steps_before_a: int
    steps_before_b: int
    circumstances: tuple[Circumstance, ...]
    faults: tuple[InputFault, ...]
    packed_row_a: int = 0
    packed_row_b: int = 0
    not_finite: tuple[str, ...] = ()

    @property
    def first_position(self) -> int:
        """Lowest position that differs in the origin."""
        return self.positions[0].first


@dataclass(frozen=True, slots=True)
class Carriers:
    """Rows that the decision read, that differ, and that are no origin: they hold what an origin injected."""

    rows: int
    positions: tuple[PositionRange, ...]


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another request in an origin's batch; `finished_before` tells that it had ended before the
    decision's step.
    """

    request: str
    run: str
    finished_step: int | None
    finished_before: bool


@dataclass(frozen=True, slots=True)
class CandidateSite:
    """One site to force in a counterfactual re-run, with the path of each run."""

    site: str
    path_a: str
    path_b: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """One pair of steps that a counterfactual can make alike: a step of each run and the sites whose path
    differs.

    `is_origin` marks those that the walk found; the others computed differing rows from inputs that
    already differed. `circumstances` and `site_classes` are those of its changed sites.
    """

    step_a: int
    step_b: int
    sites: tuple[CandidateSite, ...]
    is_origin: bool
    circumstances: tuple[Circumstance, ...] = ()
    site_classes: tuple[SiteClass, ...] = ()


@dataclass(frozen=True, slots=True)
class ChoiceFault:
    """A committed token that does not follow from its own run's logits and settings; `run` is `A` or `B`."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class OriginResult:
    """What the walk from one decision found. `divergence` holds both tokens with logits where the
    decision flipped.

    `step_a` and `step_b` are the steps of the decision; `missing` says what evidence lacks and what to
    record. `failure_a` and `failure_b` say why a run could choose no token here, empty where it could; its
    token is then the largest number's, which it did not commit.
    """

    run_a: str
    run_b: str
    request_a: str
    request_b: str
    position: int
    output_index: int
    token_a: Token
    token_b: Token
    flipped: bool
    logits_differ: bool | None
    step_a: int
    step_b: int
    divergence: TokenDivergence | None
    ending_a: Ending
    ending_b: Ending
    rows_read: int
    differing_rows: int
    origins: tuple[Origin, ...]
    carriers: Carriers
    neighbours: tuple[Neighbour, ...]
    candidates: tuple[Candidate, ...]
    faults: tuple[InputFault, ...]
    choice_faults: tuple[ChoiceFault, ...]
    missing: tuple[str, ...]
    failure_a: str = ""
    failure_b: str = ""
    schema: str = SCHEMA

    @property
    def failed(self) -> tuple[str, ...]:
        """Runs, `A` or `B`, that could choose no token at this decision."""
        return tuple(run for run, why in (("A", self.failure_a), ("B", self.failure_b)) if why)
