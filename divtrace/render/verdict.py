"""The whole answer of `divtrace blame` for a terminal: sentence, verdict, controls, proof, then the origin's
evidence.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from divtrace.origin.records import OriginResult
from divtrace.render.blame import render_evidence
from divtrace.render.measurements import past_flip_lines, reference_lines
from divtrace.render.parts import heading, line
from divtrace.render.proof import proof_lines
from divtrace.render.sentence import blame_sentence
from divtrace.render.text import visible
from divtrace.verdict.records import BlameResult, Confidence, Nature, Verdict

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
    Confidence.PROVEN: "proven both ways by re-runs that changed nothing but these choices",
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
    if result.origins is not None:
        parts += list(_experiments(result, result.origins))
        parts += [Text(""), render_evidence(result.origins)]
    if result.next_time:
        parts += [Text(""), heading("To decide it next time")]
        parts += [line("-", visible(advice)) for advice in result.next_time]
    return Group(*parts)


def _verdict(result: BlameResult) -> Iterator[RenderableType]:
    yield line("verdict", f"{result.verdict.value}, {CONFIDENCE_WORDS[result.confidence]}", CONTROL_COLUMNS)
    yield line("is it a bug?", f"{NATURE_WORDS[result.nature]}.", CONTROL_COLUMNS)
    yield line("because", f"{visible(result.reason)}.", CONTROL_COLUMNS)


def _experiments(result: BlameResult, origins: OriginResult) -> Iterator[RenderableType]:
    if result.proof is not None:
        yield from (Text(""), heading("Proof"), *proof_lines(result.proof, origins))
    if result.reference is not None:
        yield from (Text(""), heading("Which one is right? (float64)"), *reference_lines(result.reference))
    if result.past_flip is not None:
        yield from (Text(""), heading("Past the decision"), *past_flip_lines(result.past_flip))
