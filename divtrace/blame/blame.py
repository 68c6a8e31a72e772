"""`blame` as a function: diff, controls, origin, proof, verdict, in this order; stops at the first control that
fails.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from divtrace.align.runs import RunPair
from divtrace.blame.records import BlameResult, Confidence, Control, Nature, Verdict
from divtrace.blame.verdict import Judgement, judge
from divtrace.diff.compare import diff_runs
from divtrace.diff.records import DiffResult, Outcome
from divtrace.origin.find import find_origins_of
from divtrace.origin.records import OriginResult
from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.prove import prove
from divtrace.proof.records import ProofResult, ReplayControl
from divtrace.replay.replay import Replayer
from divtrace.trace.reader import Trace
from engine.model.load import LoadedModel


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """Where and with what to prove. `loaded` is called only if a proof is needed; `scratch` keeps results for
    resuming.
    """

    loaded: Callable[[], LoadedModel]
    scratch: Path | None = None
    progress: Callable[[str], None] = lambda _: None


def blame(
    a: Trace, b: Trace, request: str | None = None, position: int | None = None, proof: ProofOptions | None = None
) -> BlameResult:
    """Explain why `b` differs from `a`.

    Args:
        a: trace of the run taken as the reference.
        b: trace of the other run.
        request: id of the request to explain; by default the one that diverged first.
        position: the decision to explain; by default the divergence.
        proof: how to re-run; None leaves the verdict a suspicion.

    Raises:
        DivtraceError: no such request or position. TraceError: a trace is damaged.
    """
    runs = RunPair(a, b)
    diff = diff_runs(runs)
    controls = [_inputs_control(diff), _weights_control(diff)]
    stopped = _stopped_by_inputs(diff)
    if stopped is not None:
        return _result(stopped, controls, diff, None, None)
    if diff.outcome is Outcome.NONE_SEEN and request is None:
        nothing = Judgement(
            Verdict.NONE_SEEN,
            Nature.NOTHING,
            Confidence.SHOWN,
            f"no difference seen in {diff.compared.tokens} tokens of {diff.compared.requests} requests",
        )
        return _result(nothing, controls, diff, None, None)
    origins = find_origins_of(runs, request, position)
    proven = _prove(a, b, origins, proof) if proof is not None and origins.flipped and origins.candidates else None
    if proven is not None:
        controls += [_replay_control(control) for control in proven.controls]
    return _result(judge(origins, proven), controls, diff, origins, proven)


def _prove(a: Trace, b: Trace, origins: OriginResult, options: ProofOptions) -> ProofResult:
    loaded = options.loaded()
    replayers = Replayer(a, loaded), Replayer(b, loaded)
    with tempfile.TemporaryDirectory(prefix="divtrace-") as temporary:
        scratch = options.scratch or Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        return prove(Counterfactuals(*replayers, origins, scratch, options.progress))


def _inputs_control(diff: DiffResult) -> Control:
    differing = [r.id_a for r in diff.requests if r.prompt_difference is not None]
    if differing:
        return Control("same prompts", False, f"prompt ids of {', '.join(differing[:3])} differ")
    return Control("same prompts", True, f"prompt ids of {len(diff.requests)} requests are equal")


def _weights_control(diff: DiffResult) -> Control:
    equal = diff.inputs.weights_equal
    words = {
        True: "the hashes of the weights are equal",
        False: "the hashes of the weights differ",
        None: "not recorded",
    }
    return Control("same weights", equal, words[equal])


def _replay_control(control: ReplayControl) -> Control:
    evidence = (
        f"{control.steps} steps played back: every token, logit and K/V row is the same bit for bit"
        if control.is_equal
        else f"played back, it differs from its own trace from step {control.first_differing_step} on ({control.what})"
    )
    return Control(f"{control.run} against {control.run}", control.is_equal, evidence)


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


def _result(
    judgement: Judgement,
    controls: list[Control],
    diff: DiffResult,
    origins: OriginResult | None,
    proof: ProofResult | None,
) -> BlameResult:
    return BlameResult(
        verdict=judgement.verdict,
        nature=judgement.nature,
        confidence=judgement.confidence,
        reason=judgement.reason,
        controls=tuple(controls),
        diff=diff,
        origins=origins,
        proof=proof,
        next_time=judgement.next_time,
    )
