"""`blame` as a function: diff, controls, origin, proof, verdict, in this order; stops at the first control that
fails.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from divtrace.align.runs import RunPair
from divtrace.divergence.compare import diff_runs
from divtrace.divergence.records import DiffResult, Outcome
from divtrace.origin.find import find_origins_of
from divtrace.origin.records import OriginResult
from divtrace.proof.limits import MOST_JOINT_TRIALS
from divtrace.proof.past_flip import PastFlip
from divtrace.proof.records import ProofResult, ReplayControl
from divtrace.reference.records import ReferenceResult
from divtrace.trace.reader import Trace
from divtrace.verdict import controls, stops
from divtrace.verdict.experiments import Experiments
from divtrace.verdict.records import BlameResult, Confidence, Control, Nature, Verdict
from divtrace.verdict.verdict import Judgement, judge
from engine.model.load import LoadedModel


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """Where and with what to prove, and what else to run. `loaded` is called only if something has to run.

    `scratch` keeps results for resuming. `check_recording`: one more playback without a recorder; made
    unasked where the runs were recorded at different levels. `reference`: the
    deciding logits in float64. `past_flip`: positions behind the decision at which to measure drift.
    `joint_trials`: re-runs that may be spent on making a joint set smaller.
    """

    loaded: Callable[[], LoadedModel]
    scratch: Path | None = None
    progress: Callable[[str], None] = lambda _: None
    check_recording: bool = False
    reference: bool = False
    past_flip: int = 0
    joint_trials: int = MOST_JOINT_TRIALS


@dataclass(slots=True)
class _Case:
    """What is known so far."""

    diff: DiffResult
    controls: list[Control]
    origins: OriginResult | None = None
    proof: ProofResult | None = None
    reference: ReferenceResult | None = None
    past_flip: PastFlip | None = field(default=None)

    def close(self, judgement: Judgement) -> BlameResult:
        return BlameResult(
            verdict=judgement.verdict,
            nature=judgement.nature,
            confidence=judgement.confidence,
            reason=judgement.reason,
            controls=tuple(self.controls),
            diff=self.diff,
            origins=self.origins,
            proof=self.proof,
            reference=self.reference,
            past_flip=self.past_flip,
            next_time=judgement.next_time,
        )


def blame(
    a: Trace,
    b: Trace,
    request: str | None = None,
    position: int | None = None,
    proof: ProofOptions | None = None,
    again: Trace | None = None,
) -> BlameResult:
    """Explain why `b` differs from `a`.

    Args:
        a: trace of the run taken as the reference.
        b: trace of the other run.
        request: id of the request to explain; by default the one that diverged first.
        position: the decision to explain; by default the divergence.
        proof: how to re-run; None leaves the verdict a suspicion.
        again: a second recording of run A; without it A against A is a playback.

    Raises:
        DivtraceError: no such request or position. TraceError: a trace is damaged.
    """
    runs = RunPair(a, b)
    diff = diff_runs(runs)
    case = _Case(diff, [controls.same_prompts(diff), controls.same_weights(diff)])
    stopped = _stopped_by_inputs(diff) or _stopped_by_again(case, a, again)
    if stopped is not None:
        return case.close(stopped)
    if diff.outcome is Outcome.NONE_SEEN:
        return case.close(_none_seen(diff))
    undecided = stops.never_decided(runs, diff, request)
    if undecided is not None:
        return case.close(undecided)
    case.origins = find_origins_of(runs, request, position)
    stopped = stops.other_sampling(diff, case.origins)
    if stopped is not None:
        return case.close(stopped)
    if proof is not None and (case.origins.flipped or case.origins.logits_differ or case.origins.differing_rows):
        stopped = _experiment(
            case, Experiments(runs, case.origins, proof.loaded(), proof.scratch, proof.progress), proof
        )
        if stopped is not None:
            return case.close(stopped)
    elsewhere = sorted({*controls.environment_differences(a), *controls.environment_differences(b)})
    return case.close(judge(case.origins, case.proof, tuple(elsewhere)))


def _experiment(case: _Case, experiments: Experiments, options: ProofOptions) -> Judgement | None:
    """Fill in everything that takes a re-run; a judgement where a control ends the matter."""
    replays = experiments.replays()
    case.controls += [controls.against_replay(c, experiments.trace(c.run)) for c in replays]
    if options.reference:
        case.reference = experiments.reference()
    failed = next((control for control in replays if not control.is_equal), None)
    if failed is not None:
        if experiments.asked_more_than_recorded(failed.run) and experiments.recording(failed.run).first_step is None:
            return _asking_changed(failed)
        case.proof = experiments.prove(options.joint_trials)
        return None
    if options.check_recording or not experiments.recorded_alike:
        case.controls.append(controls.recording_on_and_off(experiments.recording()))
        if case.controls[-1].holds is False:
            return _recording_changed(case.controls[-1])
    case.proof = experiments.prove(options.joint_trials)
    if options.past_flip:
        case.past_flip = experiments.past_flip(case.proof, options.past_flip)
    return None


def _none_seen(diff: DiffResult) -> Judgement:
    return Judgement(
        Verdict.NONE_SEEN,
        Nature.NOTHING,
        Confidence.SHOWN,
        f"no difference seen in {diff.compared.tokens} tokens of {diff.compared.requests} requests",
    )


def _stopped_by_inputs(diff: DiffResult) -> Judgement | None:
    if diff.inputs.weights_equal is False:
        return Judgement(
            Verdict.INPUTS_DIFFER,
            Nature.INPUTS,
            Confidence.SHOWN,
            "the runs used different weights; compare runs of one model",
        )
    differing = [r for r in diff.requests if r.prompt_difference is not None]
    if differing and all(r.prompt_difference is not None for r in diff.requests):
        first = differing[0]
        return Judgement(
            Verdict.INPUTS_DIFFER,
            Nature.INPUTS,
            Confidence.SHOWN,
            f"the prompts of request {first.id_a!r} differ from position {first.prompt_difference} "
            "on, before any token was made",
        )
    if diff.outcome is Outcome.NOTHING_COMPARED:
        return Judgement(
            Verdict.NOT_DECIDABLE,
            Nature.UNDECIDED,
            Confidence.NONE,
            "the traces have no request in common",
            ("record both runs of one workload",),
        )
    return None


def _stopped_by_again(case: _Case, a: Trace, again: Trace | None) -> Judgement | None:
    if again is None:
        return None
    case.controls.append(controls.against_again(a, again))
    if case.controls[-1].holds is not False:
        return None
    return Judgement(
        Verdict.NOT_REPRODUCIBLE,
        Nature.UNDECIDED,
        Confidence.SHOWN,
        "the reference run was recorded twice and differs from itself, so a difference from run B says nothing yet",
        ("find out why run A does not repeat itself: unordered reductions, time limits, another machine",),
    )


def _asking_changed(failed: ReplayControl) -> Judgement:
    """Without anybody asking for K/V rows the run repeats itself; with it, it does not."""
    return Judgement(
        Verdict.RECORDING_CHANGED_THE_RUN,
        Nature.BUG,
        Confidence.SHOWN,
        f"run {failed.run}, recorded without K/V rows, repeats itself when it is played back so, and differs from step "
        f"{failed.first_differing_step} on ({failed.what}) when K/V rows are asked for",
        ("record both runs at one level, and report this as a fault of the recorder",),
    )


def _recording_changed(control: Control) -> Judgement:
    return Judgement(
        Verdict.RECORDING_CHANGED_THE_RUN,
        Nature.BUG,
        Confidence.SHOWN,
        f"{control.evidence}: what was recorded is not what runs without a recorder",
        ("record at a lower level (--level logits), and report this as a fault of the recorder",),
    )
