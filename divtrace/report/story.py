"""The part of a report that is words: one sentence, the proof in one line, is it a bug, and the six answers.

Written for somebody who knows nothing of the tool and has one minute; the exact sentence of `divtrace blame`
stands below it on the page.
"""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.blame.records import BlameResult, Confidence, Nature, Verdict
from divtrace.origin.records import Crossing, Origin, OriginKind, OriginResult
from divtrace.proof.records import Direction, ProofResult, Trial
from divtrace.render.sentence import described_side
from divtrace.render.text import counted, listed
from divtrace.render.verdict import NATURE_WORDS, verdict_sentence
from divtrace.report.page_text import short_text

ROUNDING_VERDICTS = frozenset(
    {
        Verdict.KERNEL_PATH,
        Verdict.ATTENTION_SPLIT,
        Verdict.CHUNK_BOUNDARY,
        Verdict.PREFIX_CACHE_REUSE,
        Verdict.PREEMPTION_RECOMPUTE,
    }
)
CONFIDENCE_BADGES = {
    Confidence.PROVEN: "proven by re-running, both ways",
    Confidence.SHOWN: "shown by the evidence",
    Confidence.SUSPECTED: "suspected, nothing was re-run",
    Confidence.NONE: "no confidence",
}


@dataclass(frozen=True, slots=True)
class Answer:
    """One question that every reader has, and its answer."""

    question: str
    answer: str


@dataclass(frozen=True, slots=True)
class Story:
    """The top of the page. `tone` (rounding, bug, inputs, undecided, nothing) picks the sign beside the answer."""

    headline: str
    subtitle: str
    verdict: str
    confidence: str
    proof: str
    is_it_a_bug: str
    because: str
    tone: str
    answers: tuple[Answer, ...]
    exact: str


def tell(blame: BlameResult) -> Story:
    """The story of a blame result, whatever it found."""
    return Story(
        headline=_headline(blame),
        subtitle=_subtitle(blame),
        verdict=blame.verdict.value,
        confidence=CONFIDENCE_BADGES[blame.confidence],
        proof=proof_line(blame),
        is_it_a_bug=_bug_words(blame),
        because=_sentence(blame.reason),
        tone=blame.nature.name.lower(),
        answers=_answers(blame),
        exact=verdict_sentence(blame),
    )


def origin_of(blame: BlameResult) -> Origin | None:
    """The origin that the story is about: the first one that a proof names, else the first one found."""
    origins = blame.origins
    if origins is None or not origins.origins:
        return None
    named = blame.proof.cause if blame.proof is not None else ()
    causes = {(origins.candidates[i].step_a, origins.candidates[i].step_b) for i in named}
    return next((o for o in origins.origins if (o.step_a, o.step_b) in causes), origins.origins[0])


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
    parts = [_trial_words(trial, origins) for trial in _telling_trials(proof)]
    equal = [control for control in proof.controls if control.is_equal]
    if equal:
        parts.append(f"{counted(len(equal), 'unchanged replay')} gave every bit again")
    return (
        f"{CONFIDENCE_BADGES[blame.confidence].capitalize()}: {'; '.join(parts)}." if parts else _sentence(blame.reason)
    )


def _telling_trials(proof: ProofResult) -> list[Trial]:
    """The smallest trial of each direction that brought the other token."""
    found = []
    for direction in Direction:
        flips = [trial for trial in proof.trials if trial.direction is direction and trial.flips]
        found += sorted(flips, key=lambda trial: len(trial.candidates))[:1]
    return found


def _trial_words(trial: Trial, origins: OriginResult) -> str:
    restores = trial.direction is Direction.RESTORE
    run, other = ("B", "A") if restores else ("A", "B")
    token = origins.token_a if restores else origins.token_b
    steps = [origins.candidates[i].step_b if restores else origins.candidates[i].step_a for i in trial.candidates]
    where = f"step {steps[0]}" if len(steps) == 1 else f"steps {listed(map(str, steps), 5)}"
    return f"{run} with {other}’s kernels in {where} alone writes {_quoted(token.text)}, as {other} did"


def _evidence(blame: BlameResult) -> str:
    held = [control for control in blame.controls if control.holds]
    return _sentence("; ".join(control.evidence for control in held)) if held else ""


def _headline(blame: BlameResult) -> str:
    origins = blame.origins
    if origins is None:
        return _sentence(f"{blame.verdict.value}: {blame.reason}")
    where = f"output token {origins.output_index}"
    request = short_text(origins.request_a)
    what = (
        f"Request {request} split at {where}"
        if origins.flipped
        else f"Request {request} keeps its tokens up to {where}"
    )
    origin = origin_of(blame)
    if origin is None or blame.verdict not in ROUNDING_VERDICTS:
        return _sentence(f"{what}: {blame.reason}")
    run, step, _ = described_side(origin)
    before = origin.steps_before_b if run == "B" else origin.steps_before_a
    when = (
        f"{counted(before, 'step')} earlier, in step {step} of {_run_name(blame, run)}"
        if before
        else "in that very step"
    )
    joined = who_joined(origin)
    cause = f"{joined} joined its batch" if joined else "its rows were computed in another batch"
    link = " because" if blame.confidence in (Confidence.PROVEN, Confidence.SHOWN) else "; suspected cause:"
    return f"{what}{link} {cause} {when}."


def _subtitle(blame: BlameResult) -> str:
    origins = blame.origins
    if origins is None:
        return ""
    if not origins.flipped:
        return f"Both runs wrote {_quoted(origins.token_a.text)}."
    a, b = _run_name(blame, "A"), _run_name(blame, "B")
    return f"{a} (run A) wrote {_quoted(origins.token_a.text)}, {b} (run B) wrote {_quoted(origins.token_b.text)}."


def _bug_words(blame: BlameResult) -> str:
    if blame.nature is Nature.UNDECIDED and blame.verdict in ROUNDING_VERDICTS:
        return "Not proven yet; it looks like rounding"
    words = NATURE_WORDS[blame.nature]
    return {Nature.ROUNDING: f"No. {words}", Nature.BUG: f"Yes. {words}"}.get(blame.nature, words)


def _answers(blame: BlameResult) -> tuple[Answer, ...]:
    origins = blame.origins
    if origins is None:
        return ()
    answers = [Answer("Which request split?", short_text(origins.request_a) if origins.flipped else "none")]
    text = f"Output token {origins.output_index} (position {origins.position}): {_subtitle(blame)}"
    answers.append(Answer("At which token?", text))
    origin = origin_of(blame)
    if origin is not None:
        answers.append(Answer("Which step caused it?", _step_words(blame, origin)))
        joined = who_joined(origin)
        crossing = main_crossing(origin)
        company = f"{joined}." if joined else "Nobody."
        answers.append(
            Answer(
                "What joined the batch there?",
                f"{company} {_sentence(crossing_sentence(crossing))}" if crossing else company,
            )
        )
    answers.append(Answer("Is it a bug?", f"{_bug_words(blame)}. {_sentence(blame.reason)}"))
    answers.append(Answer("How sure are we?", proof_line(blame)))
    return tuple(answers)


def _step_words(blame: BlameResult, origin: Origin) -> str:
    run, step, _ = described_side(origin)
    if origin.kind is OriginKind.SELECTION:
        return f"Step {origin.step_a} of A and {origin.step_b} of B: the decision itself."
    before = origin.steps_before_b if run == "B" else origin.steps_before_a
    when = f"{counted(before, 'step')} before the split" if before else "the step of the split itself"
    other = f" (step {origin.step_a} of A computed the same rows)" if run == "B" else f" (step {origin.step_b} of B)"
    return f"Step {step} of run {run}, {_run_name(blame, run)}: {when}{other}."


def _run_name(blame: BlameResult, run: str) -> str:
    return short_text(blame.diff.run_a.name if run == "A" else blame.diff.run_b.name)


def _quoted(text: str) -> str:
    return f"“{short_text(text, 32)}”".replace("\n", "\\n")


def _sentence(text: str) -> str:
    """With a capital letter and one full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." if text else ""
