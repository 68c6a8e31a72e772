"""Chooses the verdict from controls, origins and proof. Pure: every rule stands here, in order."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.origin.records import Circumstance, Origin, OriginKind, OriginResult, SiteClass
from divtrace.proof.records import Causality, Direction, Method, Outcome, ProofResult, ReplayControl, Subject
from divtrace.verdict.records import Confidence, Nature, Verdict

BUG_KINDS = {OriginKind.WRONG_INPUT, OriginKind.NEVER_WRITTEN, OriginKind.CHANGED_AFTER_WRITING}
MOST_NAMED = 3
CAUSES = {Causality.ONE, Causality.EITHER, Causality.JOINT, Causality.NECESSARY}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the reason for it and what to record next time where it cannot be one."""

    verdict: Verdict
    nature: Nature
    confidence: Confidence
    reason: str
    next_time: tuple[str, ...] = ()


def judge(origins: OriginResult, proof: ProofResult | None, elsewhere: tuple[str, ...] = ()) -> Judgement:
    """Judge a decision that differs (in token or state) after inputs and weights were found equal.

    `elsewhere` names what is another here than where the runs were recorded.
    """
    kinds = {origin.kind for origin in origins.origins}
    if OriginKind.SELECTION in kinds:
        return _selection(origins)
    if kinds & BUG_KINDS:
        return _corruption(origins)
    if OriginKind.NOT_FINITE in kinds:
        return _not_finite(next(o for o in origins.origins if o.kind is OriginKind.NOT_FINITE))
    failed = next((control for control in proof.controls if not control.is_equal), None) if proof else None
    if failed is not None:
        return _not_reproduced(failed, elsewhere)
    if not origins.origins:
        return _undecidable(origins, "no record was found whose inputs are equal and whose output differs")
    return _paths(origins, proof)


def _selection(origins: OriginResult) -> Judgement:
    """One run's choice contradicts its own logits, or equal logits gave two tokens: no drift can do either."""
    if origins.choice_faults:
        fault = origins.choice_faults[0]
        reason = f"in run {fault.run} the committed token does not follow from its own logits: {fault.reason}"
    elif origins.logits_differ is False:
        reason = "the logits of the deciding row are equal bit for bit and another token was committed"
    else:
        reason = "the deciding logits do not explain the other token"
    return Judgement(
        Verdict.SELECTION,
        Nature.BUG,
        Confidence.SHOWN,
        f"{reason}, so the fault is behind the logits: ties, sampler, penalties or acceptance",
    )


def _not_finite(origin: Origin) -> Judgement:
    return Judgement(
        Verdict.STATE_CORRUPTION,
        Nature.BUG,
        Confidence.SHOWN,
        f"{_not_finite_place(origin)}, from inputs and kernel paths that gave finite numbers in the other",
    )


def _not_finite_place(origin: Origin) -> str:
    """`in step 3 run B made NaN or Inf in the values of layer 0, position 3`: the first such place."""
    run, step = origin.not_finite[0], origin.step_a if origin.not_finite[0] == "A" else origin.step_b
    position = origin.positions[0].first
    if origin.tensor == "logits":
        return f"in step {step} run {run} made NaN or Inf in the logits that decide position {position}"
    rows = {"key": "keys", "value": "values"}.get(origin.tensor, "keys and values")
    return f"in step {step} run {run} made NaN or Inf in the {rows} of layer {origin.layer}, position {position}"


def _not_reproduced(failed: ReplayControl, elsewhere: tuple[str, ...]) -> Judgement:
    if elsewhere:
        return Judgement(
            Verdict.NOT_DECIDABLE,
            Nature.UNDECIDED,
            Confidence.NONE,
            f"run {failed.run} was recorded under other conditions ({', '.join(elsewhere[:MOST_NAMED])}) and does not "
            f"come out the same here, from step {failed.first_differing_step} on ({failed.what}), so nothing can be "
            "proven here",
            ("run blame where the runs were recorded, with the same library versions and thread count",),
        )
    return Judgement(
        Verdict.NOT_REPRODUCIBLE,
        Nature.UNDECIDED,
        Confidence.SHOWN,
        f"run {failed.run} played back unchanged differs from its own trace from step "
        f"{failed.first_differing_step} on "
        f"({failed.what}): the same configuration does not repeat itself here, so there is nothing to blame yet",
        (
            "find out why it does not repeat itself: unordered reductions, threads, a fault that strikes now and then",
            "record with --audit 1: it tells a row that changed in memory from a kernel that does not repeat itself",
        ),
    )


def _corruption(origins: OriginResult) -> Judgement:
    fault = next((f for origin in origins.origins for f in origin.faults), None) or next(iter(origins.faults), None)
    where = f": {fault.kind} in run {fault.run}, step {fault.step}, position {fault.position}" if fault else ""
    return Judgement(
        Verdict.STATE_CORRUPTION,
        Nature.BUG,
        Confidence.SHOWN,
        f"a row was read that is not what was written for that place{where}; rounding cannot do that",
    )


def _paths(origins: OriginResult, proof: ProofResult | None) -> Judgement:
    if proof is not None and proof.causality in CAUSES:
        verdict = (
            _kind_of_path(origins, proof) if proof.subject is Subject.PATHS else _kind_of_row_count(origins, proof)
        )
        not_finite = next((origin for origin in origins.origins if origin.not_finite), None)
        nature = Nature.BUG if not_finite is not None else Nature.ROUNDING
        suffix = f"; {_not_finite_place(not_finite)}, which is no rounding" if not_finite is not None else ""
        return Judgement(verdict, nature, _confidence(proof), _proof_reason(proof) + suffix)
    if any(_is_moved_key(origin) for origin in origins.origins):
        return Judgement(
            Verdict.STATE_CORRUPTION,
            Nature.BUG,
            Confidence.SHOWN if proof is not None else Confidence.SUSPECTED,
            "keys differ where the values made from the same hidden state agree, by the same kernels over as many "
            "rows, and both runs repeat themselves: the keys were rotated for another position",
        )
    if not origins.candidates:
        return _undecidable(
            origins,
            "every site took a path of the same name in both runs, so what differs is inside a "
            "kernel that this trace does "
            "not tell apart" + (f"; {proof.note}" if proof is not None and proof.note else ""),
        )
    if proof is None:
        return Judgement(
            _kind_of_path(origins, None),
            Nature.UNDECIDED,
            Confidence.SUSPECTED,
            "the origin's sites took different kernel paths; no counterfactual was run, so this is a "
            "suspect and not a cause",
            ("run blame without --no-proof, where the model is at hand",),
        )
    if proof.causality is Causality.NONE:
        what = "bring the other token" if origins.flipped else "make the logits those of the other run"
        return _undecidable(
            origins,
            f"changing the kernel paths of every candidate does not {what}: they differ, but are not the cause",
        )
    return _undecidable(origins, proof.note)


def _is_moved_key(origin: Origin) -> bool:
    """A key is its projection rotated by its position; with an equal projection only the position is left."""
    return origin.kind is OriginKind.UNEXPLAINED and origin.tensor == "key" and not origin.suspects


def _kind_of_row_count(origins: OriginResult, proof: ProofResult | None) -> Verdict:
    """The same, where a kernel's own choice by row count takes the place of a path."""
    verdict = _kind_of_path(origins, proof)
    return Verdict.KERNEL_PATH if verdict is Verdict.ATTENTION_SPLIT else verdict


def _kind_of_path(origins: OriginResult, proof: ProofResult | None) -> Verdict:
    """What moved the cause to another path; the first origin stands in where no cause was singled out."""
    circumstances, classes = _of_cause(origins, proof)
    by_schedule = Circumstance.OTHER_RULE not in circumstances
    if by_schedule and Circumstance.RECOMPUTE in circumstances:
        return Verdict.PREEMPTION_RECOMPUTE
    if by_schedule and Circumstance.PREFIX_REUSE in circumstances:
        return Verdict.PREFIX_CACHE_REUSE
    if classes == {SiteClass.ATTENTION}:
        return Verdict.ATTENTION_SPLIT
    if by_schedule and Circumstance.CHUNK_BOUNDARY in circumstances and Circumstance.SHARED_BATCH not in circumstances:
        return Verdict.CHUNK_BOUNDARY
    return Verdict.KERNEL_PATH


def _of_cause(origins: OriginResult, proof: ProofResult | None) -> tuple[set[Circumstance], set[SiteClass]]:
    named = proof.cause or next(iter(proof.sufficient), ()) if proof is not None else ()
    candidates = [proof.candidates[index] for index in named] if proof is not None else []
    steps = {(candidate.step_a, candidate.step_b) for candidate in candidates}
    causes = [origin for origin in origins.origins if (origin.step_a, origin.step_b) in steps]
    if candidates and not causes:
        return set(candidates[0].circumstances), set(candidates[0].site_classes)
    origin = causes[0] if causes else origins.origins[0]
    return set(origin.circumstances), _changed_classes(origin)


def _changed_classes(origin: Origin) -> set[SiteClass]:
    return {suspect.site_class for suspect in origin.suspects if suspect.changed == "path"}


def _confidence(proof: ProofResult) -> Confidence:
    """Both ways and by both tests: proven. A second test that disagrees takes that away."""
    if proof.swap_agrees is False:
        return Confidence.SHOWN
    ways = {trial.direction for trial in proof.trials if trial.flips}
    return Confidence.PROVEN if ways == {Direction.RESTORE, Direction.INDUCE} else Confidence.SHOWN


def _proof_reason(proof: ProofResult) -> str:
    by_token = any(trial.outcome is Outcome.TOKEN for trial in proof.trials)
    outcome = "the other token" if by_token else "the other run's logits, bit for bit"
    if proof.subject is Subject.ROW_COUNTS:
        reason = (
            "the paths have one name and ran over other numbers of rows; with row-independent kernels there, in both "
            "runs, the deciding logits are equal bit for bit, so the kernel's dependence on its rows is the cause"
        )
    else:
        reason = {
            Causality.ONE: _one_cause(proof, outcome),
            Causality.EITHER: "several choices are each enough by themselves; only changing all of them restores "
            "run A's outcome",
            Causality.JOINT: _joint_cause(proof, by_token),
        }.get(
            proof.causality,
            f"taking this choice away restores run A's outcome; alone it does not bring {outcome}",
        )
    swapped = {proof.candidates[i].step_b for some in (proof.cause, *proof.sufficient) for i in some}
    place = "that step" if len(swapped) == 1 else "the same steps"
    swap = {
        True: f"; swapping the K/V rows of {place}, paths left alone, says the same",
        False: f"; but swapping the K/V rows of {place} does not come out the same, so part of the effect took "
        "another way",
        None: "",
    }
    return reason + swap[proof.swap_agrees]


def _one_cause(proof: ProofResult, outcome: str) -> str:
    """Bits can come by B's K/V rows alone: the same kernel over A's fewer rows may round otherwise."""
    by_path = {t.direction for t in proof.trials if t.flips and t.method is Method.PATH}
    if Direction.INDUCE in by_path:
        return f"changing only this choice brings {outcome}, in both directions"
    return f"taking this choice away brings {outcome}; in run A its K/V rows, and nothing else of run B, do the same"


def _joint_cause(proof: ProofResult, by_token: bool) -> str:
    """What is enough to undo it, and what it takes to bring it about."""
    undone = {proof.candidates[i].step_b for i in proof.cause}
    together = {proof.candidates[i].step_a for some in proof.sufficient for i in some}
    what = "token" if by_token else "logits"
    steps = f"step {min(undone)}" if len(undone) == 1 else f"{len(undone)} steps"
    return (
        f"undoing {steps} in run B is enough to bring run A's {what} back; in run A, {len(together)} steps "
        f"together bring run B's {what} about"
    )


def _undecidable(origins: OriginResult, reason: str) -> Judgement:
    return Judgement(Verdict.NOT_DECIDABLE, Nature.UNDECIDED, Confidence.NONE, reason, origins.missing)
