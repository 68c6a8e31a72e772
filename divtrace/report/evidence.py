"""Pieces of the story that tables use too: the origin it is about, who joined, what crossed a threshold, the proof."""

from __future__ import annotations

from divtrace.origin.records import Crossing, Origin, OriginResult
from divtrace.proof.records import Direction, Method, ProofResult, Trial
from divtrace.render.text import counted, listed
from divtrace.report.page_text import short_text
from divtrace.verdict.records import BlameResult, Confidence

CONFIDENCE_BADGES = {
    Confidence.PROVEN: "proven by re-running, both ways",
    Confidence.SHOWN: "shown by the evidence",
    Confidence.SUSPECTED: "suspected, nothing was re-run",
    Confidence.NONE: "no confidence",
}


def origin_of(blame: BlameResult) -> Origin | None:
    """The origin that the story is about: the first one that a proof names, else the first one found."""
    origins = blame.origins
    if origins is None or not origins.origins:
        return None
    causes = cause_steps(blame.proof)
    return next((o for o in origins.origins if (o.step_a, o.step_b) in causes), origins.origins[0])


def cause_steps(proof: ProofResult | None) -> frozenset[tuple[int, int]]:
    """Steps (of A, of B) of the candidates that a proof names as the cause."""
    if proof is None:
        return frozenset()
    return frozenset((proof.candidates[i].step_a, proof.candidates[i].step_b) for i in proof.cause)


def who_joined(origin: Origin) -> str:
    """`follower's prefill of 49 rows`, or an empty string where nobody joined."""
    joined = {(s.request, s.kind, s.rows) for crossing in origin.crossings for s in crossing.joined}
    return (
        listed(f"{short_text(request)}’s {kind} of {counted(rows, 'row')}" for request, kind, rows in sorted(joined))
        if joined
        else ""
    )


def main_crossing(origin: Origin) -> Crossing | None:
    """The crossing with the most sites."""
    return max(origin.crossings, key=lambda crossing: crossing.sites, default=None)


def crossing_sentence(crossing: Crossing) -> str:
    """`50 rows are over the threshold of 4, so 210 sites (qkv, mlp) took gemm instead of gemv`."""
    over_b = crossing.over == "B"
    rows, other = (crossing.rows_b, crossing.rows_a) if over_b else (crossing.rows_a, crossing.rows_b)
    usual, taken = (crossing.path_a, crossing.path_b) if over_b else (crossing.path_b, crossing.path_a)
    limit = crossing.limit
    why = f"{counted(rows, 'row')} instead of {other}"
    if limit is not None and rows > limit:
        why += f" are over the threshold of {limit}"
    classes = listed(site_class.value for site_class in crossing.site_classes)
    sites = counted(crossing.sites, "site")
    return f"{why}, so {sites} ({classes}) took {short_text(taken)} instead of {short_text(usual)}"


def proof_line(blame: BlameResult) -> str:
    """One line: what was re-run and what came of it."""
    proof, origins = blame.proof, blame.origins
    if proof is None or origins is None:
        return f"{CONFIDENCE_BADGES[blame.confidence].capitalize()}. {_evidence(blame)}"
    parts = [_trial_words(trial, proof, origins) for trial in _telling_trials(proof)]
    equal = [control for control in proof.controls if control.is_equal]
    if equal:
        parts.append(f"{counted(len(equal), 'unchanged replay')} gave every bit again")
    if proof.swap_agrees:
        parts.append("swapping the K/V rows of that step instead gives the same")
    return (
        f"{CONFIDENCE_BADGES[blame.confidence].capitalize()}: {'; '.join(parts)}." if parts else sentence(blame.reason)
    )


def _telling_trials(proof: ProofResult) -> list[Trial]:
    """The smallest trial of each direction that brought the other token."""
    found = []
    for direction in Direction:
        same_way = (t for t in proof.trials if t.direction is direction and t.method is Method.PATH)
        flips = [trial for trial in same_way if trial.flips]
        found += sorted(flips, key=lambda trial: len(trial.candidates))[:1]
    return found


def _trial_words(trial: Trial, proof: ProofResult, origins: OriginResult) -> str:
    restores = trial.direction is Direction.RESTORE
    run, other = ("B", "A") if restores else ("A", "B")
    token = origins.token_a if restores else origins.token_b
    steps = [proof.candidates[i].step_b if restores else proof.candidates[i].step_a for i in trial.candidates]
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {listed(map(str, steps), 5)}"
    outcome = f"writes {quoted_text(token.text)}, as {other} did" if origins.flipped else f"computes {other}’s logits"
    return f"{run} with {other}’s kernels in {where} alone {outcome}"


def _evidence(blame: BlameResult) -> str:
    held = [control for control in blame.controls if control.holds]
    return sentence("; ".join(control.evidence for control in held)) if held else ""


def quoted_text(text: str) -> str:
    """Text of a token between quotation marks, on one line."""
    return f"“{short_text(text, 32)}”".replace("\n", "\\n")


def sentence(text: str) -> str:
    """With a capital letter and one full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." if text else ""
