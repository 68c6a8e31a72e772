"""Records of a comparison, JSON-ready through pydantic. `SCHEMA` names their version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from divtrace.api.sources import Source

SCHEMA = "divtrace.diff/1"


class Effect(StrEnum):
    """What a setting that differs can change, most serious first."""

    RESULT = "result"
    NUMERICS = "numerics"
    BATCHING = "batching"
    OTHER = "other"


class Outcome(StrEnum):
    """What the comparison came to."""

    NONE_SEEN = "none seen"
    STATE = "state differs, tokens equal"
    TOKENS = "tokens differ"
    INPUTS = "inputs differ"
    NOTHING_COMPARED = "nothing compared"


@dataclass(frozen=True, slots=True)
class Token:
    """A token id and its text; bytes that are no whole UTF-8 character appear as backslash escapes."""

    id: int
    text: str


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """One leaf that differs; `path` is dotted, `a` and `b` are JSON text or None where absent."""

    path: str
    a: str | None
    b: str | None
    effect: Effect


@dataclass(frozen=True, slots=True)
class InputComparison:
    """What went into the runs, apart from prompts. Hashes are None where a trace has none."""

    weights_equal: bool | None
    tokenizer_equal: bool | None
    differences: tuple[SettingDifference, ...]


@dataclass(frozen=True, slots=True)
class TopLogit:
    """One of the largest logits of a decision, after penalties and bias."""

    token: Token
    logit: float


@dataclass(frozen=True, slots=True)
class LogitDrift:
    """The same token's logit in both runs; None where it is not among a run's recorded top-k. `ulps` in
    float32 steps.
    """

    token: Token
    a: float | None
    b: float | None
    drift: float | None
    ulps: int | None


@dataclass(frozen=True, slots=True)
class Flip:
    """Whether the logits themselves explain that another token was chosen.

    With x the token of run A and y that of run B: `margin_a` = x - y in A, `margin_b` = y - x in B,
    `differential_drift` = (y in B - y in A) - (x in B - x in A). Drift explains the flip when each run
    chose its own larger logit (no negative margin) and the differential drift is positive and equals
    margin_a + margin_b, that is, at least A's gap. `explained` is None where it cannot be told; `reason`
    says why in words. `largest_drift_before` and `median_drift_before` are over the top-k logits of the
    compared decisions before the flip whose logits differ.
    """

    explained: bool | None
    reason: str
    margin_a: float | None
    margin_b: float | None
    differential_drift: float | None
    largest_drift_before: float | None
    median_drift_before: float | None


@dataclass(frozen=True, slots=True)
class TokenDivergence:
    """The first position at which the runs committed different tokens. Logit fields are empty below level
    logits.
    """

    position: int
    output_index: int
    token_a: Token
    token_b: Token
    step_a: int | None
    step_b: int | None
    top_a: tuple[TopLogit, ...]
    top_b: tuple[TopLogit, ...]
    gap_a: float | None
    gap_b: float | None
    drifts: tuple[LogitDrift, ...]
    flip: Flip


@dataclass(frozen=True, slots=True)
class LogitsDifference:
    """The first decision whose raw logits differ in any bit."""

    position: int
    step_a: int
    step_b: int


@dataclass(frozen=True, slots=True)
class RowDifference:
    """The first KV row, in run A's execution order, that differs. `tensor` is key, value or both."""

    position: int
    layer: int
    tensor: str
    step_a: int
    step_b: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended in one run; `reason` is `unfinished` where the trace ends before it."""

    reason: str
    step: int | None
    output_tokens: int


@dataclass(frozen=True, slots=True)
class DraftStatistics:
    """Speculation of one request in one run."""

    steps: int
    proposed_tokens: int
    accepted_tokens: int

    @property
    def acceptance(self) -> float:
        """Accepted per proposed token, 0 where nothing was proposed."""
        return self.accepted_tokens / self.proposed_tokens if self.proposed_tokens else 0.0


@dataclass(frozen=True, slots=True)
class GapBin:
    """Decisions of run A whose gap is at most `limit` (and above the bin before); None is the rest."""

    limit: float | None
    decisions: int


@dataclass(frozen=True, slots=True)
class Compared:
    """How much was looked at: output tokens at equal inputs, decisions whose logits were hashed, KV rows
    of all layers.
    """

    requests: int
    tokens: int
    decisions_with_logits: int
    kv_rows: int
    layers: int


@dataclass(frozen=True, slots=True)
class RequestDiff:
    """One request in both runs. `unmatched_kv_rows` were read in one run and have no record in the other."""

    id_a: str
    id_b: str
    matched_by: str
    prompt_tokens: int
    compared_tokens: int
    prompt_difference: int | None
    divergence: TokenDivergence | None
    first_logits_difference: LogitsDifference | None
    first_row_difference: RowDifference | None
    decisions_with_logits: int
    kv_rows: int
    differing_kv_rows: int
    unmatched_kv_rows: int
    ending_a: Ending
    ending_b: Ending
    drafts_a: DraftStatistics
    drafts_b: DraftStatistics
    gaps: tuple[GapBin, ...]

    @property
    def state_differs(self) -> bool:
        """True when logits or KV rows differ."""
        return self.first_logits_difference is not None or self.first_row_difference is not None

    @property
    def failed_apart(self) -> bool:
        """True when a decision was impossible in one run, and the other went on."""
        return self.ended_apart and "error" in (self.ending_a.reason, self.ending_b.reason)

    @property
    def ended_apart(self) -> bool:
        """True when both runs finished this request by themselves (an impossible decision is such an end), with equal
        tokens and at different lengths.
        """
        own_end = {"stop", "length", "error"}
        return (
            self.divergence is None
            and self.prompt_difference is None
            and self.ending_a.output_tokens != self.ending_b.output_tokens
            and {self.ending_a.reason, self.ending_b.reason} <= own_end
        )


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One run of the comparison. `kv_hash` names the hash of its KV rows, empty where it recorded none; `unfinished`
    says how a run ended that did not serve everything.
    """

    name: str
    path: str
    level: str
    steps: int
    requests: int
    clean_end: bool
    kv_hash: str = ""
    unfinished: str = ""


@dataclass(frozen=True, slots=True)
class DiffResult:
    """Everything that `divtrace diff` answers."""

    run_a: RunSummary
    run_b: RunSummary
    outcome: Outcome
    compared: Compared
    inputs: InputComparison
    requests: tuple[RequestDiff, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    ambiguous: tuple[tuple[str, ...], ...]
    diverged_requests: int
    gaps: tuple[GapBin, ...]
    schema: str = SCHEMA

    @property
    def hashes_differ(self) -> bool:
        """True when both runs recorded KV rows and no hash of one can be held against the other's."""
        hashes = {self.run_a.kv_hash, self.run_b.kv_hash}
        return "" not in hashes and len(hashes) > 1

    @property
    def exit_status(self) -> int:
        """As diff(1): 0 no difference seen, 1 tokens or state differ, 2 nothing to compare or prompts
        differ.
        """
        if self.outcome in (Outcome.TOKENS, Outcome.STATE):
            return 1
        return 0 if self.outcome is Outcome.NONE_SEEN else 2

    def plot(self, a: Source | None = None, b: Source | None = None, *, request: str | None = None) -> Figure:
        """A plotly figure: gap and drift of each decision over positions, on a logarithmic scale, the flip marked.

        Args:
            a: the runs again, or the bundle, where they are no longer at the paths that were compared.
            b: the other run.
            request: id of the request to draw; by default the one that split first.

        Raises:
            DivtraceError: plotly is not installed, or the runs are gone or changed. EvidenceError: no logits recorded.
        """
        from divtrace.figures.decisions import plot_decisions
        from divtrace.figures.runs import runs_of

        with runs_of(self, a, b) as (trace_a, trace_b):
            return plot_decisions(self, trace_a, trace_b, request)
