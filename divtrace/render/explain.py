"""`divtrace blame --explain`: the chain of the argument, numbered, in plain words.

Each step says what was asked, what the evidence is, and what it rules out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.text import Text

from divtrace.origin.records import OriginResult
from divtrace.proof.records import Causality, Direction, Method, ProofResult, Subject
from divtrace.reference.records import Agreement
from divtrace.render.measurements import AGREEMENT_WORDS
from divtrace.render.parts import indented, line
from divtrace.render.proof import neutral_words, trial_name, trial_words
from divtrace.render.sentence import batch_words, described_side, origin_cause
from divtrace.render.text import counted, logit, name, positions, quoted, visible
from divtrace.render.verdict import CONFIDENCE_WORDS, NATURE_WORDS, verdict_sentence
from divtrace.verdict.records import BlameResult, Verdict

MOST_TRIALS = 6
RULED_OUT = {
    "same prompts": "different inputs",
    "same weights": "different models",
    "A against A": "a reference run that does not repeat itself",
    "B against B": "a run that does not repeat itself, and a playback that is not the run",
    "recording": "a recorder that changes what it records",
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One step: a claim, the evidence for it, and what it rules out (empty where it rules out nothing)."""

    claim: str
    evidence: str
    rules_out: str = ""


def explanation(result: BlameResult) -> tuple[Argument, ...]:
    """The argument in order; it ends where a control fails or evidence ends."""
    return tuple(_arguments(result))


def render_explanation(result: BlameResult) -> RenderableType:
    """The argument for a terminal of 80 columns."""
    parts: list[RenderableType] = []
    for number, step in enumerate(explanation(result), start=1):
        parts += [Text(f"{number}. {step.claim}", style="bold"), line("  evidence", step.evidence, 14)]
        if step.rules_out:
            parts.append(line("  rules out", step.rules_out, 14))
        parts.append(Text(""))
    parts += [Text("So: " + verdict_sentence(result), style="bold")]
    words = f"{result.verdict.value}, {CONFIDENCE_WORDS[result.confidence]}. {NATURE_WORDS[result.nature]}."
    parts.append(indented(words))
    parts += [indented(f"To decide it next time: {visible(advice)}.") for advice in result.next_time]
    return Group(*parts)


def _arguments(result: BlameResult) -> Iterator[Argument]:
    for control in result.controls:
        if control.holds is None:
            continue
        failed = "" if control.holds else " does NOT hold"
        ruled_out = RULED_OUT.get(control.name, "") if control.holds else ""
        yield Argument(f"Control: {control.name}{failed}", visible(control.evidence), ruled_out)
    origins = result.origins
    if origins is None:
        yield Argument(f"Verdict: {result.verdict.value}", visible(result.reason))
        return
    yield _decision(origins)
    if origins.divergence is not None and origins.divergence.flip.explained is not None:
        yield _flip(origins)
    yield from _walk(origins)
    if result.proof is not None and result.proof.causality is not Causality.UNTESTED:
        yield from _proof(result.proof, origins)
    if result.reference is not None and result.reference.agrees_with is not Agreement.UNKNOWN:
        yield _reference(result)
    yield Argument(f"Verdict: {result.verdict.value}", visible(result.reason), _other_verdicts(result))


def _decision(origins: OriginResult) -> Argument:
    where = f"position {origins.position} of {name(origins.request_a)}"
    steps = f"step {origins.step_a} of A, step {origins.step_b} of B; all tokens before it are equal"
    if origins.flipped:
        claim = f"The runs part at {where}: {quoted(origins.token_a)} in A, {quoted(origins.token_b)} in B"
        return Argument(claim, steps, "a difference that came in with an earlier token")
    failed = [f"run {run}: {visible(why)}" for run, why in (("A", origins.failure_a), ("B", origins.failure_b)) if why]
    if failed:
        return Argument(f"No token was possible at {where}", f"{'; '.join(failed)} {steps}")
    return Argument(f"The tokens are equal up to {where}, and what lies behind them is not", steps)


def _flip(origins: OriginResult) -> Argument:
    flip = origins.divergence.flip if origins.divergence else None
    evidence = visible(flip.reason) if flip else ""
    if flip and flip.margin_a is not None and flip.margin_b is not None:
        evidence += f"; margins {logit(flip.margin_a)} in A and {logit(flip.margin_b)} in B"
    if flip and flip.explained:
        return Argument("The logits themselves explain the flip", evidence, "ties, sampler, penalties, acceptance")
    return Argument("The logits do not explain the flip", evidence, "rounding in the model")


def _walk(origins: OriginResult) -> Iterator[Argument]:
    if origins.rows_read:
        differ = origins.differing_rows
        evidence = f"it read {counted(origins.rows_read, 'K/V row')}, of which {differ:,} differ"
        if origins.carriers.rows:
            evidence += f"; {origins.carriers.rows:,} of these only carry what earlier ones hold"
        claim = "The difference came through K/V memory" if differ else "Everything that the decision read is equal"
        yield Argument(
            claim, evidence, "the decision's own step as the cause" if differ else "K/V memory as the carrier"
        )
    for number, origin in enumerate(origins.origins[:3], start=1):
        run, step, batch = described_side(origin)
        which = "The first record" if number == 1 else "Another record"
        at = "the logits" if origin.tensor == "logits" else f"layer {origin.layer}, {positions(origin.positions)}"
        claim = f"{which} with equal inputs and another output is {at}, in step {step} of {run}"
        evidence = f"a batch of {batch_words(batch)}, {origin_cause(origin)}"
        yield Argument(
            claim, evidence, "every step before it: their outputs are equal bit for bit" if number == 1 else ""
        )
    if origins.faults:
        fault = origins.faults[0]
        evidence = (
            f"run {fault.run}, position {fault.position}: {name(fault.expected)} expected, {name(fault.found)} found"
        )
        yield Argument(f"A row was not what belongs there: {fault.kind}", evidence, "rounding")


def _proof(proof: ProofResult, origins: OriginResult) -> Iterator[Argument]:
    for direction, question in (
        (Direction.RESTORE, "Taking the suspect away in run B"),
        (Direction.INDUCE, "Putting the suspect into run A"),
    ):
        for method in Method:
            trials = [t for t in proof.trials if t.direction is direction and t.method is method]
            for trial in trials[:MOST_TRIALS]:
                come = "brings the other outcome" if trial.flips else "does not bring the other outcome"
                how = "" if method is Method.PATH else ", by its K/V rows alone,"
                evidence = f"{trial_name(trial, proof)}: {trial_words(trial, proof, origins)}"
                yield Argument(f"{question}{how} {come}", evidence, _trial_rules_out(trial.flips, direction))
    for neutral in proof.neutral_trials[:MOST_TRIALS]:
        come = "the runs agree" if neutral.agree else "the runs still differ"
        claim = f"With kernels that no other row can change, {come}"
        yield Argument(
            claim, neutral_words(neutral, proof, origins), "a cause outside these kernels" if neutral.agree else ""
        )


def _trial_rules_out(flips: bool, direction: Direction) -> str:
    if not flips:
        return (
            "this change as a sufficient cause" if direction is Direction.INDUCE else "this change as the whole cause"
        )
    return (
        "a decoy: a suspect that differs without effect" if direction is Direction.RESTORE else "a second, hidden cause"
    )


def _reference(result: BlameResult) -> Argument:
    reference = result.reference
    words = AGREEMENT_WORDS[reference.agrees_with] if reference else ""
    errors = [f"{run}: {error:.3g}" for run in "AB" if reference and (error := reference.total_error(run)) is not None]
    evidence = f"computed from the same weights and tokens; summed error of the deciding logits, {', '.join(errors)}"
    return Argument(words[:1].upper() + words[1:], evidence if errors else "computed from the same weights and tokens")


def _other_verdicts(result: BlameResult) -> str:
    """What the evidence excludes beside the verdict."""
    if result.verdict is Verdict.NOT_DECIDABLE or result.proof is None:
        return ""
    subject = "kernels" if result.proof.subject is Subject.ROW_COUNTS else "paths"
    proven = result.proof.causality not in (Causality.NONE, Causality.UNTESTED)
    return f"a bug in K/V memory or in selection: nothing but {subject} was changed" if proven else ""
