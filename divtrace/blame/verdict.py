"""Chooses the verdict from controls, origins and proof. Pure: every rule stands here, in order."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.blame.records import Confidence, Nature, Verdict
from divtrace.origin.records import Circumstance, Origin, OriginKind, OriginResult, SiteClass
from divtrace.proof.records import Causality, Direction, ProofResult, ReplayControl, Subject

BUG_KINDS = {OriginKind.WRONG_INPUT, OriginKind.NEVER_WRITTEN, OriginKind.CHANGED_AFTER_WRITING}
CAUSES = {Causality.ONE, Causality.EITHER, Causality.JOINT, Causality.NECESSARY}


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict with the reason for it and what to record next time where it cannot be one."""

    verdict: Verdict
    nature: Nature
    confidence: Confidence
    reason: str
    next_time: tuple[str, ...] = ()


def judge(origins: OriginResult, proof: ProofResult | None) -> Judgement:
    """Judge a decision that differs (in token or state) after inputs and weights were found equal."""
    kinds = {origin.kind for origin in origins.origins}
    if kinds & BUG_KINDS:
        return _corruption(origins)
    if OriginKind.SELECTION in kinds and len(kinds) == 1:
        return Judgement(
            Verdict.SELECTION,
            Nature.BUG,
            Confidence.SHOWN,
            "the logits of the deciding row are equal bit for bit and another token was committed, "
            "so the fault is behind "
            "the logits: ties, sampler, penalties or acceptance",
        )
    failed = next((control for control in proof.controls if not control.is_equal), None) if proof else None
    if failed is not None:
        return _not_reproduced(failed)
    if not origins.origins:
        return _undecidable(origins, "no record was found whose inputs are equal and whose output differs")
    return _paths(origins, proof)


def _not_reproduced(failed: ReplayControl) -> Judgement:
    return Judgement(
        Verdict.NOT_REPRODUCIBLE,
        Nature.UNDECIDED,
        Confidence.SHOWN,
        f"run {failed.run} played back unchanged differs from its own trace from step "
        f"{failed.first_differing_step} on "
        f"({failed.what}): the same configuration does not repeat itself here, so there is nothing to blame yet",
        ("replay on the machine that recorded the runs, with the same library versions and thread count",),
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
        verdict = _kind_of_path(origins) if proof.subject is Subject.PATHS else _kind_of_row_count(origins)
        return Judgement(verdict, Nature.ROUNDING, _confidence(proof), _proof_reason(proof, origins))
    if not origins.candidates:
        return _undecidable(
            origins,
            "every site took a path of the same name in both runs, so what differs is inside a "
            "kernel that this trace does "
            "not tell apart" + (f"; {proof.note}" if proof is not None and proof.note else ""),
        )
    if proof is None:
        return Judgement(
            _kind_of_path(origins),
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


def _kind_of_row_count(origins: OriginResult) -> Verdict:
    """The same, where a kernel's own choice by row count takes the place of a path."""
    verdict = _kind_of_path(origins)
    return Verdict.KERNEL_PATH if verdict is Verdict.ATTENTION_SPLIT else verdict


def _kind_of_path(origins: OriginResult) -> Verdict:
    origin = origins.origins[0]
    circumstances = {c for o in origins.origins for c in o.circumstances}
    if Circumstance.RECOMPUTE in circumstances:
        return Verdict.PREEMPTION_RECOMPUTE
    if Circumstance.PREFIX_REUSE in circumstances:
        return Verdict.PREFIX_CACHE_REUSE
    if _changed_classes(origin) == {SiteClass.ATTENTION}:
        return Verdict.ATTENTION_SPLIT
    if Circumstance.CHUNK_BOUNDARY in circumstances and Circumstance.SHARED_BATCH not in circumstances:
        return Verdict.CHUNK_BOUNDARY
    return Verdict.KERNEL_PATH


def _changed_classes(origin: Origin) -> set[SiteClass]:
    return {suspect.site_class for suspect in origin.suspects if suspect.changed == "path"}


def _confidence(proof: ProofResult) -> Confidence:
    """Both ways and by both tests: proven. A second test that disagrees takes that away."""
    if proof.swap_agrees is False:
        return Confidence.SHOWN
    ways = {trial.direction for trial in proof.trials if trial.flips}
    return Confidence.PROVEN if ways == {Direction.RESTORE, Direction.INDUCE} else Confidence.SHOWN


def _proof_reason(proof: ProofResult, origins: OriginResult) -> str:
    outcome = "the other token" if origins.flipped else "the other run's logits, bit for bit"
    if proof.subject is Subject.ROW_COUNTS:
        reason = (
            "the paths have one name and ran over other numbers of rows; with row-independent kernels there, in both "
            "runs, the deciding logits are equal bit for bit, so the kernel's dependence on its rows is the cause"
        )
    else:
        reason = {
            Causality.ONE: f"changing only this choice brings {outcome}, in both directions",
            Causality.EITHER: "several choices are each enough by themselves; only changing all of them restores "
            "run A's outcome",
            Causality.JOINT: f"{outcome} come{'s' if origins.flipped else ''} only when these choices act together",
        }.get(
            proof.causality,
            f"taking this choice away restores run A's outcome; alone it does not bring {outcome}",
        )
    swap = {
        True: "; swapping the K/V rows of that step, paths left alone, says the same",
        False: "; but swapping the K/V rows of that step does not come out the same, so part of the effect took "
        "another way",
        None: "",
    }
    return reason + swap[proof.swap_agrees]


def _undecidable(origins: OriginResult, reason: str) -> Judgement:
    return Judgement(Verdict.NOT_DECIDABLE, Nature.UNDECIDED, Confidence.NONE, reason, origins.missing)
