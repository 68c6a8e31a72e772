"""The part of a report that is words: one sentence, the proof in one line, is it a bug, and the six answers.

Written for somebody who knows nothing of the tool and has one minute; the exact sentence of `divtrace blame`
stands below it on the page.
"""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.origin.records import Origin, OriginKind
from divtrace.render.sentence import described_side
from divtrace.render.text import counted
from divtrace.render.verdict import NATURE_WORDS, verdict_sentence
from divtrace.report.advice import ROUNDING_VERDICTS, what_next, what_was_checked
from divtrace.report.both_ways import both_ways
from divtrace.report.evidence import (
    CONFIDENCE_BADGES,
    SPACE,
    cause_steps,
    crossing_sentence,
    main_crossing,
    origin_of,
    quoted_text,
    sentence,
    who_joined,
)
from divtrace.report.page_text import short_text
from divtrace.report.proof_words import cause_roles, is_exact, proof_limits, proof_line
from divtrace.report.reference_words import reference_line
from divtrace.report.retry import Retry
from divtrace.verdict.records import BlameResult, Confidence, Nature


@dataclass(frozen=True, slots=True)
class Answer:
    """One question that every reader has, and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Story:
    """The top of the page. `tone` (rounding, bug, inputs, undecided, nothing) picks the sign beside the answer.

    `reading`: how counts and marks on the page are meant. `reference`: what float64 says, empty where it was not asked.
    `checked`: what was looked at and what was not, where rounding is the answer.
    `next_step`: what to do about the verdict.
    """

    headline: str
    subtitle: str
    reading: str
    verdict: str
    confidence: str
    proof: str
    is_it_a_bug: str
    because: str
    tone: str
    reference: str
    checked: str
    next_step: str
    answers: tuple[Answer, ...]
    exact: str


def tell(blame: BlameResult, retry: Retry | None = None) -> Story:
    """The story of a blame result, whatever it found; `retry` holds the commands that it may name."""
    return Story(
        headline=_headline(blame),
        subtitle=_subtitle(blame),
        reading=_reading(blame),
        verdict=blame.verdict.value,
        confidence=CONFIDENCE_BADGES[blame.confidence],
        proof=proof_line(blame),
        is_it_a_bug=_bug_words(blame),
        because=sentence(blame.reason),
        tone=blame.nature.name.lower(),
        reference=reference_line(blame),
        checked=what_was_checked(blame),
        next_step=what_next(blame, retry),
        answers=_answers(blame),
        exact=verdict_sentence(blame),
    )


def _headline(blame: BlameResult) -> str:
    origins = blame.origins
    if origins is None:
        return sentence(f"{blame.verdict.value}: {blame.reason}")
    where = f"output token {origins.output_index}"
    request = short_text(origins.request_a)
    unsplit = f"Request {request} wrote the same tokens from differing state, seen at {where}"
    failed = f"Request {request} failed at {where} in run {' and '.join(origins.failed)}"
    what = f"Request {request} split at {where}" if origins.flipped else failed if origins.failed else unsplit
    origin = origin_of(blame)
    if origin is None or blame.verdict not in ROUNDING_VERDICTS:
        return sentence(f"{what}: {blame.reason}")
    run, step, _ = described_side(origin)
    before = origin.steps_before_b if run == "B" else origin.steps_before_a
    place = f"{counted(before, 'step')} earlier, in step {step} of run {run} ({_run_name(blame, run)})"
    when = place if before else "in that very step"
    causes = len(cause_steps(blame.proof))
    joined = who_joined(blame, origin)
    cause = f"{joined} joined its batch" if joined else "its rows were computed in another batch"
    ways = both_ways(blame, run)
    if ways:
        return " ".join([f"{what}. It began {when}, where {cause}.", ways[-1]])
    link = " because" if blame.confidence in (Confidence.PROVEN, Confidence.SHOWN) else "; suspected cause:"
    return f"{what}{link} {cause} {when}{f', the first of {causes} steps that matter' * (causes > 1)}."


def _subtitle(blame: BlameResult) -> str:
    origins = blame.origins
    if origins is None:
        return ""
    if origins.failed:
        wrote = {"A": origins.token_a, "B": origins.token_b}
        others = [f"run {run} wrote {quoted_text(wrote[run].text)}" for run in "AB" if run not in origins.failed]
        return sentence("; ".join([*others, *(why for why in (origins.failure_a, origins.failure_b) if why)]))
    if not origins.flipped:
        return f"Both runs wrote {quoted_text(origins.token_a.text)}."
    a, b = _run_name(blame, "A"), _run_name(blame, "B")
    return (
        f"{a} (run A) wrote {quoted_text(origins.token_a.text)}, {b} (run B) wrote {quoted_text(origins.token_b.text)}."
    )


def _reading(blame: BlameResult) -> str:
    """How to read this page's numbers and marks, in one line; empty where nothing was walked."""
    origins = blame.origins
    if origins is None:
        return ""
    shown = quoted_text(origins.token_a.text) + quoted_text(origins.token_b.text)
    mark = f"{SPACE} is a space. " if SPACE in shown else ""
    drafts = [run for r in blame.diff.requests if r.id_a == origins.request_a for run in (r.drafts_a, r.drafts_b)]
    several = " A step can write several tokens, where guessed ones (drafts) are accepted."
    return f"{mark}Tokens, positions, steps and layers count from 0.{several * any(d.accepted_tokens for d in drafts)}"


def _bug_words(blame: BlameResult) -> str:
    if blame.nature is Nature.UNDECIDED and blame.verdict in ROUNDING_VERDICTS:
        return "Not proven yet; it looks like rounding"
    words = NATURE_WORDS[blame.nature]
    return {Nature.ROUNDING: f"No. {words}", Nature.BUG: f"Yes. {words}"}.get(blame.nature, words)


def _answers(blame: BlameResult) -> tuple[Answer, ...]:
    origins = blame.origins
    if origins is None:
        return ()
    none = f"None. {short_text(origins.request_a)} is the one whose state differs first."
    parted = origins.flipped or origins.failed
    answers = [Answer("Which request split?", short_text(origins.request_a) if parted else none)]
    place = f"position {origins.position}: prompt tokens count too"
    text = f"Output token {origins.output_index} ({place}). {_subtitle(blame)}"
    answers.append(Answer("At which token?", text))
    origin = origin_of(blame)
    if origin is not None:
        answers.append(Answer("Which step caused it?", _step_words(blame, origin)))
        joined = who_joined(blame, origin)
        crossing = main_crossing(origin)
        company = f"Joined: {joined}." if joined else "Nobody."
        answers.append(
            Answer(
                "What joined the batch there?",
                f"{company} {sentence(crossing_sentence(crossing))}" if crossing else company,
            )
        )
    answers.append(Answer("Is it a bug?", f"{_bug_words(blame)}. {sentence(blame.reason)}"))
    answers.append(Answer("How sure are we, and of what not?", _sure_words(blame)))
    return tuple(answers)


def _sure_words(blame: BlameResult) -> str:
    """The badge, and whether exact logits came back; where nothing was proven, what was seen."""
    if not proof_limits(blame):
        return proof_line(blame)
    badge = f"{CONFIDENCE_BADGES[blame.confidence].capitalize()}, for this one decision."
    what = "token and its exact logits" if is_exact(blame) else "token, not always its exact logits"
    where = "the note under the table of re-runs says more, and what they do not show"
    return f"{badge} The re-runs give the other run’s {what}; {where}."


def _step_words(blame: BlameResult, origin: Origin) -> str:
    run, step, _ = described_side(origin)
    if origin.kind is OriginKind.SELECTION:
        return f"Step {origin.step_a} of A and {origin.step_b} of B: the decision itself."
    before = origin.steps_before_b if run == "B" else origin.steps_before_a
    when = f"{counted(before, 'step')} before the split" if before else "the step of the split itself"
    other = f" (step {origin.step_a} of A computed the same rows)" if run == "B" else f" (step {origin.step_b} of B)"
    sure = {Confidence.SUSPECTED: "Suspected: step", Confidence.NONE: "Not known; the first difference is in step"}
    place = f"{sure.get(blame.confidence, 'Step')} {step} of run {run}, {when}{other}."
    return " ".join([place, *cause_roles(blame)])


def _run_name(blame: BlameResult, run: str) -> str:
    return short_text(blame.diff.run_a.name if run == "A" else blame.diff.run_b.name)
