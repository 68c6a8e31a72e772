"""The whole answer of `divtrace blame` for a terminal: sentence, verdict, controls, proof, then the origin's
evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from divtrace.blame.records import BlameResult, Confidence, Nature, Verdict
from divtrace.origin.records import OriginResult
from divtrace.proof.records import Direction, ProofResult, Trial
from divtrace.render.blame import render_evidence
from divtrace.render.parts import heading, line
from divtrace.render.sentence import blame_sentence
from divtrace.render.text import counted, quoted, visible

CONTROL_COLUMNS = 16
MARKS = {True: "holds", False: "FAILS", None: "not asked"}
NATURE_WORDS = {
    Nature.ROUNDING: "Rounding, not a bug",
    Nature.BUG: "A real bug, not rounding",
    Nature.INPUTS: "Neither: the inputs differ",
    Nature.UNDECIDED: "Not decided",
    Nature.NOTHING: "Nothing to explain",
}
CONFIDENCE_WORDS = {
    Confidence.PROVEN: "proven both ways by re-running with only that choice changed",
    Confidence.SHOWN: "shown by the evidence below",
    Confidence.SUSPECTED: "suspected: no counterfactual was run",
    Confidence.NONE: "no confidence",
}


def verdict_sentence(result: BlameResult) -> str:
    """The answer in one sentence, of plain text."""
    if result.origins is None or result.verdict in (Verdict.NONE_SEEN, Verdict.INPUTS_DIFFER):
        return f"{result.verdict.value.capitalize()}: {visible(result.reason)}."
    return blame_sentence(result.origins)


def render_verdict(result: BlameResult) -> RenderableType:
    """Everything, readable at 80 columns with and without colour."""
    parts: list[RenderableType] = [Text(verdict_sentence(result), style="bold"), Text("")]
    parts += list(_verdict(result))
    parts += [Text(""), heading("Controls")]
    parts += [line(c.name, f"{MARKS[c.holds]}: {visible(c.evidence)}", CONTROL_COLUMNS) for c in result.controls]
    if result.proof is not None and result.origins is not None:
        parts += [Text(""), heading("Proof"), *_proof(result.proof, result.origins)]
    if result.origins is not None:
        parts += [Text(""), render_evidence(result.origins)]
    if result.next_time:
        parts += [Text(""), heading("To decide it next time")]
        parts += [line("-", visible(advice)) for advice in result.next_time]
    return Group(*parts)


def _verdict(result: BlameResult) -> Iterator[RenderableType]:
    yield line("verdict", f"{result.verdict.value}, {CONFIDENCE_WORDS[result.confidence]}", CONTROL_COLUMNS)
    yield line("is it a bug?", f"{NATURE_WORDS[result.nature]}.", CONTROL_COLUMNS)
    yield line("because", f"{visible(result.reason)}.", CONTROL_COLUMNS)


def _proof(proof: ProofResult, origins: OriginResult) -> Iterator[RenderableType]:
    for trial in proof.trials:
        yield line(trial.direction.value, f"{_trial_name(trial, origins)}: {_trial_words(trial, origins)}")
    controls = len(proof.controls)
    yield line("re-runs", f"{proof.reruns}, {controls} of them controls")


def _trial_name(trial: Trial, origins: OriginResult) -> str:
    restores = trial.direction is Direction.RESTORE
    steps = [origins.candidates[i].step_b if restores else origins.candidates[i].step_a for i in trial.candidates]
    named = ", ".join(map(str, steps[:4])) + (" ..." if len(steps) > 4 else "")
    run, other = ("B", "A") if restores else ("A", "B")
    return f"run {run} with {other}'s paths in step {named}"


def _trial_words(trial: Trial, origins: OriginResult) -> str:
    restores = trial.direction is Direction.RESTORE
    other = origins.token_a if restores else origins.token_b
    sites = sum(len(origins.candidates[i].sites) for i in trial.candidates)
    outcome = f"picks {quoted(other)}, as the other run did" if trial.flips else f"still picks {trial.chosen_token}"
    if trial.margin is None or trial.margin_without is None:
        margin = ""
    else:
        margin = f"; the margin of its own token goes from {trial.margin_without:+.6f} to {trial.margin:+.6f}"
    return f"{counted(sites, 'site')} changed: {outcome}{margin}"
