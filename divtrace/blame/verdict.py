"""Chooses the verdict from controls, origins and proof. Pure: every rule stands here, in order."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.blame.records import Confidence, Nature, Verdict
from divtrace.origin.records import Circumstance, Origin, OriginKind, OriginResult, SiteClass
from divtrace.proof.records import Causality, Direction, ProofResult

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
    if proof is not None and any(not control.is_equal for control in proof.controls):
        failed = next(control for control in proof.controls if not control.is_equal)
        return Judgement(
            Verdict.NOT_REPRODUCIBLE,
            Nature.UNDECIDED,
            Confidence.SHOWN,
            f"run {failed.run} played back unchanged differs from its own trace from step "
            f"{failed.first_differing_step} on "
            f"({failed.what}): the same configuration does not repeat itself here, so there is nothing to blame yet",
            ("replay on the machine that recorded the runs, with the same library versions and thread count",),
        )
    if not origins.origins:
        return _undecidable(origins, "no record was found whose inputs are equal and whose output differs")
    return _paths(origins, proof)


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
    if not origins.candidates:
        return _undecidable(
            origins,
            "every site took a path of the same name in both runs, so what differs is inside a "
            "kernel that this trace does "
            "not tell apart",
        )
    verdict = _kind_of_path(origins)
    if proof is None:
        return Judgement(
            verdict,
            Nature.UNDECIDED,
            Confidence.SUSPECTED,
            "the origin's sites took different kernel paths; no counterfactual was run, so this is a "
            "suspect and not a cause",
            ("run blame without --no-proof, where the model is at hand",),
        )
    if proof.causality in CAUSES:
        return Judgement(verdict, Nature.ROUNDING, _confidence(proof), _proof_reason(proof))
    if proof.causality is Causality.NONE:
        return _undecidable(
            origins,
            "changing the kernel paths of every candidate does not bring the other token: they "
            "differ, but are not the cause",
        )
    return _undecidable(origins, proof.note)


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
    ways = {trial.direction for trial in proof.trials if trial.flips}
    return Confidence.PROVEN if ways == {Direction.RESTORE, Direction.INDUCE} else Confidence.SHOWN


def _proof_reason(proof: ProofResult) -> str:
    match proof.causality:
        case Causality.ONE:
            return "changing only this choice brings the other token, in both directions"
        case Causality.EITHER:
            return "several choices are each enough by themselves; only changing all of them brings the token back"
        case Causality.JOINT:
            return "the other token comes only when these choices act together"
        case _:
            return "taking this choice away brings the token back; alone it does not bring the other token"


def _undecidable(origins: OriginResult, reason: str) -> Judgement:
    return Judgement(Verdict.NOT_DECIDABLE, Nature.UNDECIDED, Confidence.NONE, reason, origins.missing)
