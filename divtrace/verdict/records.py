"""The answer of `divtrace blame`, JSON-ready. `SCHEMA` names its version."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from divtrace.divergence.records import DiffResult
from divtrace.origin.records import OriginResult
from divtrace.proof.past_flip import PastFlip
from divtrace.proof.records import ProofResult
from divtrace.reference.records import ReferenceResult

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from divtrace.api.sources import Source

SCHEMA = "divtrace.blame/1"


class Verdict(StrEnum):
    """What made the runs differ. Rounding: kernel path to preemption recompute. A bug: state corruption, selection."""

    NONE_SEEN = "no divergence seen"
    INPUTS_DIFFER = "inputs differ"
    NOT_REPRODUCIBLE = "not reproducible"
    KERNEL_PATH = "kernel path"
    ATTENTION_SPLIT = "attention split"
    CHUNK_BOUNDARY = "chunk boundary"
    PREFIX_CACHE_REUSE = "prefix-cache reuse"
    PREEMPTION_RECOMPUTE = "preemption recompute"
    STATE_CORRUPTION = "state corruption"
    SELECTION = "selection"
    RECORDING_CHANGED_THE_RUN = "recording changed the run"
    NOT_DECIDABLE = "not decidable from this evidence"


class Nature(StrEnum):
    """The answer to the question that every user asks."""

    ROUNDING = "rounding"
    BUG = "a real bug"
    INPUTS = "different inputs"
    UNDECIDED = "undecided"
    NOTHING = "nothing to explain"


class Confidence(StrEnum):
    """`proven`: re-runs that changed only this choice changed the outcome, both ways. `shown`: one way, or a fact
    that the traces hold by themselves. `suspected`: no re-run was made.
    """

    PROVEN = "proven"
    SHOWN = "shown"
    SUSPECTED = "suspected"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Control:
    """One line of the controls: what was asked, whether it holds (None: not asked), and the evidence in words."""

    name: str
    holds: bool | None
    evidence: str


@dataclass(frozen=True, slots=True)
class BlameResult:
    """Everything that `divtrace blame` answers. `reason` says why this verdict and no other; `next_time` what to
    record.
    """

    verdict: Verdict
    nature: Nature
    confidence: Confidence
    reason: str
    controls: tuple[Control, ...]
    diff: DiffResult
    origins: OriginResult | None
    proof: ProofResult | None
    reference: ReferenceResult | None = None
    past_flip: PastFlip | None = None
    next_time: tuple[str, ...] = ()
    schema: str = SCHEMA

    @property
    def exit_status(self) -> int:
        """As diff(1): 0 no divergence, 1 divergence with a verdict, 2 could not tell (or nothing that could be
        compared).
        """
        if self.verdict is Verdict.NONE_SEEN:
            return 0
        return 2 if self.verdict in (Verdict.NOT_DECIDABLE, Verdict.INPUTS_DIFFER) else 1

    def plot(self, a: Source | None = None, b: Source | None = None) -> Figure:
        """A plotly figure: the timelines of both runs, origin and flip marked and joined by an arrow.

        Args:
            a: the runs again, or the bundle, where they are no longer at the paths that were compared.
            b: the other run.

        Raises:
            DivtraceError: plotly is not installed, or the runs are gone or changed.
        """
        from divtrace.figures.runs import runs_of
        from divtrace.figures.timeline import plot_pair

        with runs_of(self.diff, a, b) as (trace_a, trace_b):
            return plot_pair(trace_a, trace_b, self)
