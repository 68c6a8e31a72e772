"""Everything of a blame that runs an engine: playbacks, proof, recording check, float64 reference, drift past the flip.

Owns which candidates are put to the test. Must not know verdicts or how anything reads.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from divtrace.align.runs import RunPair
from divtrace.origin.records import Candidate, OriginResult
from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.past_flip import PastFlip, measure_past_flip
from divtrace.proof.prove import check_replays, prove
from divtrace.proof.recording_check import RecordingCheck, check_recording
from divtrace.proof.records import Causality, Direction, ProofResult, ReplayControl, Subject
from divtrace.proof.row_counts import row_count_candidates
from divtrace.reference.compare import compare_with_reference
from divtrace.reference.records import ReferenceResult
from divtrace.replay.replay import Replayer
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level
from engine.model.load import LoadedModel


class Experiments:
    """Re-runs of one pair about one decision. Raises EvidenceError when the model is not that of the traces."""

    def __init__(
        self,
        runs: RunPair,
        origins: OriginResult,
        loaded: LoadedModel,
        scratch: Path | None,
        progress: Callable[[str], None],
    ) -> None:
        if scratch is not None:
            scratch.mkdir(parents=True, exist_ok=True)
        self._runs = runs
        self._origins = origins
        self._loaded = loaded
        self._scratch = scratch
        self._progress = progress
        self._replayers = Replayer(runs.a.trace, loaded), Replayer(runs.b.trace, loaded)
        self._paths = self._counterfactuals(origins.candidates)

    def trace(self, run: str) -> Trace:
        """The trace of run A or B."""
        return (self._runs.a if run == "A" else self._runs.b).trace

    def replays(self) -> tuple[ReplayControl, ...]:
        """A against A, and where that holds B against B."""
        return check_replays(self._paths)

    @property
    def recorded_alike(self) -> bool:
        """Both traces hold the same level, so that a recorder that disturbs its run disturbed both."""
        return self._runs.a.trace.header.level == self._runs.b.trace.header.level

    def recording(self, run: str | None = None) -> RecordingCheck:
        """A run without a recorder; run A unless more was recorded of run B."""
        if run is None:
            more_of_b = self._runs.b.trace.header.level.includes(self._runs.a.trace.header.level)
            run = "B" if more_of_b and not self.recorded_alike else "A"
        self._progress(f"control: run {run} played back without a recorder")
        step = self._origins.step_b if run == "B" else self._origins.step_a
        return check_recording(self._replayers[int(run == "B")], step)

    def asked_more_than_recorded(self, run: str) -> bool:
        """Playbacks keep K/V rows; a run of a lower level was recorded without anybody asking for them."""
        return not self.trace(run).header.level.includes(Level.KV)

    def reference(self) -> ReferenceResult:
        """The deciding logits in float64."""
        self._progress("the deciding logits in float64")
        return compare_with_reference(self._runs, self._origins, self._loaded)

    def prove(self, joint_trials: int) -> ProofResult:
        """Test paths; where none differs, or none matters, test whether kernels depend on their row counts."""
        result = prove(self._paths, joint_trials=joint_trials)
        if result.causality not in (Causality.UNTESTED, Causality.NONE):
            return result
        candidates = row_count_candidates(self._runs, self._origins)
        if not candidates or _same_sites(candidates, self._origins.candidates):
            return result
        by_rows = prove(self._counterfactuals(candidates, self._paths), Subject.ROW_COUNTS)
        return by_rows if by_rows.causality not in (Causality.UNTESTED, Causality.NONE) else result

    def past_flip(self, proof: ProofResult, positions: int) -> PastFlip:
        """Drift behind the decision; with the cause taken away too, where changing paths takes it away."""
        self._progress(f"drift at {positions} positions behind the decision")
        self._paths.require_rows("A", "B")
        bases = self._paths.bases
        chosen = proof.cause if proof.subject is Subject.PATHS else ()
        restoring = self._paths.overrides_of(Direction.RESTORE, chosen)
        return measure_past_flip(bases["A"], bases["B"], positions, restoring)

    def _counterfactuals(
        self, candidates: tuple[Candidate, ...], played: Counterfactuals | None = None
    ) -> Counterfactuals:
        a, b = self._replayers
        bases = None if played is None else played.bases
        return Counterfactuals(a, b, self._origins, candidates, self._scratch, self._progress, bases)


def _same_sites(some: tuple[Candidate, ...], others: tuple[Candidate, ...]) -> bool:
    return [(c.step_a, c.step_b, c.sites) for c in some] == [(c.step_a, c.step_b, c.sites) for c in others]
