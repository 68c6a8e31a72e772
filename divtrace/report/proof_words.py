"""A proof in words for somebody in a hurry: what was re-run, what came of it, what it does not show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from divtrace.origin.records import OriginResult
from divtrace.proof.records import Direction, Method, Outcome, ProofResult, Trial
from divtrace.render.text import counted, steps_named
from divtrace.report.both_ways import both_ways, necessary_steps, sufficient_steps
from divtrace.report.evidence import CONFIDENCE_BADGES, quoted_text, sentence, signed
from divtrace.verdict.records import BlameResult


def proof_line(blame: BlameResult) -> str:
    """A few sentences: each telling re-run and its outcome, what follows, and the controls."""
    proof, origins = blame.proof, blame.origins
    badge = CONFIDENCE_BADGES[blame.confidence].capitalize()
    if proof is None or origins is None:
        return " ".join(part for part in (f"{badge}.", _evidence(blame)) if part)
    ways = both_ways(blame)
    parts = [*ways, *_rerun_words(proof, origins), *(() if ways else _conclusion(proof)), *_checks(proof)]
    return " ".join([f"{badge}.", *parts]) if parts else sentence(blame.reason)


def proof_limits(blame: BlameResult) -> str:
    """What the re-runs do not show: exact logits, a smaller set, a place inside a step. Empty without a cause."""
    proof, origins = blame.proof, blame.origins
    telling = _telling(proof) if proof is not None else []
    if proof is None or origins is None or not telling:
        return ""
    parts = [*_exactness(proof, telling)]
    if proof.note:
        parts.append(sentence(proof.note))
    parts.append("A re-run changes whole steps: it does not tell which layer or site inside a step decides.")
    parts.append("It speaks of this one decision, with this model and these kernels.")
    return " ".join(parts)


def is_exact(blame: BlameResult) -> bool:
    """Whether every telling re-run gave the other run's deciding logits bit for bit."""
    telling = _telling(blame.proof) if blame.proof is not None else []
    return bool(telling) and all(trial.same_logits for trial in telling)


def cause_roles(blame: BlameResult) -> tuple[str, ...]:
    """Where several origins were found: which of them undo the outcome, bring it about, or are not needed."""
    origins, proof = blame.origins, blame.proof
    places = {(origin.step_a, origin.step_b) for origin in origins.origins} if origins is not None else set()
    if origins is None or len(places) < 2:
        return ()
    found = f"{len(places)} origins: {steps_named(b for _, b in places)} of run B."
    if proof is None or not (proof.cause or proof.sufficient):
        return (found,)
    necessary, sufficient = necessary_steps(proof), sufficient_steps(proof)
    roles = [found, *both_ways(blame)]
    spare = {b for a, b in places if b not in necessary and a not in sufficient}
    if spare and (necessary or sufficient):
        roles.append(f"{steps_named(spare).capitalize()} {_is_needed(spare)} not needed: the outcome changes without.")
    return tuple(roles)


def _telling(proof: ProofResult) -> list[Trial]:
    """The smallest trial of each direction that brought the other outcome, by paths where they did."""
    found = []
    for direction in Direction:
        flips = [t for t in proof.trials if t.direction is direction and t.flips]
        found += sorted(flips, key=lambda t: (t.method is not Method.PATH, len(t.candidates)))[:1]
    return found


def _rerun_words(proof: ProofResult, origins: OriginResult) -> Iterator[str]:
    """`Run B again, with run A’s kernels in step 2 and nothing else changed, writes “left”, as run A did.`"""
    for trial in _telling(proof):
        run, other = _run_and_other(trial)
        what = "kernels in" if trial.method is Method.PATH else "K/V rows of"
        come = f"{_outcome(trial, other, origins)}, as run {other} did"
        steps = steps_named(_steps(proof, trial))
        weaker = _failed_by_itself(proof, trial)
        if weaker is None:
            yield f"Run {run} again, with run {other}’s {what} {steps} and nothing else changed, {come}."
            continue
        less = steps_named(_steps(proof, weaker))
        still = f"still {_outcome(weaker, run, origins)}"
        yield f"Run {run} again, with run {other}’s {what} {less}, {still}; with those of {steps} together it {come}."


def _failed_by_itself(proof: ProofResult, trial: Trial) -> Trial | None:
    """A trial of the cause, in the same direction, that was not enough."""
    if len(trial.candidates) == len(proof.cause):
        return None
    same = (t for t in proof.trials if t.direction is trial.direction and t.method is trial.method and not t.flips)
    return next((t for t in same if t.candidates == proof.cause), None)


def _outcome(trial: Trial, run: str, origins: OriginResult) -> str:
    if trial.outcome is Outcome.LOGITS:
        return f"computes run {run}’s logits"
    return f"writes {quoted_text((origins.token_a if run == 'A' else origins.token_b).text)}"


def _conclusion(proof: ProofResult) -> Iterator[str]:
    """`So step 2 is necessary and sufficient.`"""
    necessary = necessary_steps(proof)
    if {trial.direction for trial in _telling(proof)} == set(Direction) and necessary == sufficient_steps(proof):
        yield f"So {steps_named(necessary)} {_is(necessary)} necessary and sufficient."


def _checks(proof: ProofResult) -> Iterator[str]:
    agreeing = [trial for trial in proof.neutral_trials if trial.agree]
    if agreeing:
        smallest = min(agreeing, key=lambda trial: len(trial.candidates))
        steps = steps_named(proof.candidates[i].step_b for i in smallest.candidates)
        bits = ", bit for bit" if smallest.same_logits else ""
        yield f"Both runs again with row-independent kernels in {steps} of run B agree{bits}."
    if proof.swap_agrees:
        swapped = {tuple(t.candidates) for t in proof.trials if t.method is Method.ROWS}
        place = "of that step" if len({len(some) for some in swapped} | {1}) == 1 else "of the same steps"
        yield f"Swapping the K/V rows {place} instead, kernels left as they were, comes out the same."
    equal = sum(control.is_equal for control in proof.controls)
    if equal:
        yield f"{counted(equal, 'unchanged replay')} gave every bit again."


def _exactness(proof: ProofResult, telling: Iterable[Trial]) -> Iterator[str]:
    """Whether the re-runs gave the other run's logits, or its token alone."""
    exact = [trial for trial in telling if trial.same_logits]
    loose = [t for t in telling if t.same_logits is False and t.margin is not None]
    own = {control.run: control.margin for control in proof.controls}
    if exact and not loose:
        yield "These re-runs gave the other run’s deciding logits too, bit for bit."
    for trial in loose:
        run, other = _run_and_other(trial)
        is_part = len(trial.candidates) < len(proof.candidates)
        why = "the other steps still differ" if is_part else "the same kernel over other rows may round otherwise"
        there = own.get(other)
        against = f", where run {other} itself has {signed(-there)}" if there is not None else ""
        yield (
            f"Run {run} with run {other}’s kernels takes run {other}’s token, not its exact logits: the gap of its own "
            f"token becomes {signed(trial.margin)}{against}; {why}."
        )
    by_rows = [trial for trial in proof.trials if trial.method is Method.ROWS and trial.same_logits]
    for trial in by_rows if loose else ():
        run, other = _run_and_other(trial)
        yield f"With run {other}’s K/V rows of the same steps run {run} has run {other}’s logits bit for bit."


def _run_and_other(trial: Trial) -> tuple[str, str]:
    """The run that was changed, and the one whose choices it got."""
    return ("B", "A") if trial.direction is Direction.RESTORE else ("A", "B")


def _steps(proof: ProofResult, trial: Trial) -> list[int]:
    candidates = [proof.candidates[i] for i in trial.candidates]
    return sorted({c.step_b if trial.direction is Direction.RESTORE else c.step_a for c in candidates})


def _is(steps: frozenset[int]) -> str:
    return "is" if len(steps) == 1 else "are together"


def _is_needed(steps: set[int]) -> str:
    return "is" if len(steps) == 1 else "are"


def _evidence(blame: BlameResult) -> str:
    held = [control for control in blame.controls if control.holds]
    return sentence("; ".join(control.evidence for control in held)) if held else ""
