"""The tables of a report, as rows of text: readable without a script, by a screen reader and in print."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.divergence.records import DraftStatistics, RequestDiff
from divtrace.origin.records import BatchRecord, OriginResult
from divtrace.proof.records import Direction, Method, NeutralTrial, ProofResult, Trial
from divtrace.render.measurements import AGREEMENT_WORDS
from divtrace.render.text import logit, steps_named
from divtrace.report.evidence import origin_of, quoted_text, signed
from divtrace.report.page_text import page_text, short_text
from divtrace.report.proof_words import proof_limits
from divtrace.report.sites import site_counts
from divtrace.verdict.records import BlameResult

_GAPS = "Gap and gap drift have the signs that “Words on this page” gives them."
MARKS = {True: "✓ holds", False: "✗ fails", None: "– not asked"}
LONGEST_TABLE = 200
PAST_FLIP_ROWS = 40


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table: caption, column heads, rows of cells. `note`, a line a paragraph, says what was left out."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


def controls_table(blame: BlameResult) -> PageTable:
    """What was checked first."""
    rows = tuple((page_text(c.name), MARKS[c.holds], page_text(c.evidence)) for c in blame.controls)
    played = blame.proof is not None or any(c.name == "A against A" for c in blame.controls)
    note = "A run is played back up to the split: what comes later cannot have caused it." if played else ""
    return PageTable(
        "Controls: what must hold before anything is blamed", ("control", "result", "evidence"), rows, note
    )


def trials_table(blame: BlameResult) -> PageTable | None:
    """Every counterfactual re-run, None when none was made."""
    proof, origins = blame.proof, blame.origins
    if proof is None or origins is None or not proof.trials:
        return None
    heads = (
        "run",
        "what was swapped in",
        "in",
        "sites",
        "wrote",
        "as the other run?",
        "gap before",
        "gap after",
        "gap drift",
    )
    rows = tuple(_trial_row(trial, proof, origins) for trial in proof.trials)
    rows += tuple(_neutral_row(trial, proof, origins) for trial in proof.neutral_trials)
    return PageTable(
        "Re-runs (counterfactuals): one run again, with only the named steps made like the other run",
        heads,
        rows,
        "\n".join(part for part in (_GAPS, site_counts(proof, origins), proof_limits(blame)) if part),
    )


def reference_table(blame: BlameResult) -> PageTable | None:
    """The deciding logits in float64, None where they were not computed."""
    reference = blame.reference
    if reference is None or not reference.logits:
        return None
    rows = tuple(
        (quoted_text(e.token.text), logit(e.reference), logit(e.a), logit(e.b), signed(e.error_a), signed(e.error_b))
        for e in reference.logits
    )
    heads = ("token", "float64", "A", "B", "error of A", "error of B")
    return PageTable(f"Against float64: {AGREEMENT_WORDS[reference.agrees_with]}", heads, rows)


def past_flip_table(blame: BlameResult) -> PageTable | None:
    """Drift behind the decision, None where it was not measured."""
    past = blame.past_flip
    if past is None or not past.positions:
        return None
    rows = tuple(
        (str(at.position), f"{at.largest:.3g}", f"{at.median:.3g}", "✓ yes" if at.same_choice else "✗ no")
        for at in past.positions[:PAST_FLIP_ROWS]
    )
    heads = ("position", "largest logit drift", "median logit drift", "same choice?")
    left = len(past.positions) - len(rows)
    note = f"{left} more positions were measured." if left else ""
    return PageTable("Past the decision, both runs fed run A’s tokens", heads, rows, note)


def settings_table(blame: BlameResult) -> PageTable:
    """Settings and environment that differ."""
    rows = tuple(
        (page_text(d.path), _or_dash(d.a), _or_dash(d.b), str(d.effect)) for d in blame.diff.inputs.differences
    )
    note = "" if rows else "No setting, version or environment value differs."
    return PageTable("Settings that differ", ("setting", "A", "B", "can change"), rows[:LONGEST_TABLE], note)


def requests_table(blame: BlameResult) -> PageTable:
    """How every request fared, those that split first."""
    requests = sorted(blame.diff.requests, key=lambda request: request.divergence is None)
    heads = (
        "request",
        "prompt",
        "output A",
        "output B",
        "split at position",
        "token A",
        "token B",
        "differing K/V rows",
    )
    rows = tuple(_request_row(request) for request in requests[:LONGEST_TABLE])
    left = len(requests) - len(rows)
    return PageTable("Requests in both runs", heads, rows, f"{left} more requests are not listed." if left else "")


def drafts_table(blame: BlameResult) -> PageTable | None:
    """Draft acceptance a request, None when nothing was proposed."""
    speculated = [r for r in blame.diff.requests if r.drafts_a.proposed_tokens or r.drafts_b.proposed_tokens]
    if not speculated:
        return None
    rows = tuple((page_text(r.id_a), *_drafts(r.drafts_a), *_drafts(r.drafts_b)) for r in speculated[:LONGEST_TABLE])
    return PageTable("Draft acceptance", ("request", "accepted A", "rate A", "accepted B", "rate B"), rows)


def origin_table(blame: BlameResult) -> PageTable | None:
    """The two batches of the origin, segment by segment."""
    origin = origin_of(blame)
    if origin is None:
        return None
    rows = (*_batch_rows("A", origin.batch_a), *_batch_rows("B", origin.batch_b))
    heads = ("run", "step", "request", "kind", "first position", "rows", "logits", "from cache")
    return PageTable("The batch of the origin, in both runs", heads, rows)


def _trial_row(trial: Trial, proof: ProofResult, origins: OriginResult) -> tuple[str, ...]:
    sites = sum(len(proof.candidates[i].sites) for i in trial.candidates)
    moved = signed(trial.drift)
    run, other = ("B", "A") if trial.direction is Direction.RESTORE else ("A", "B")
    candidates = [proof.candidates[i] for i in trial.candidates]
    what = "kernels" if trial.method is Method.PATH else "K/V rows"
    return (
        run,
        f"run {other}’s {what}",
        steps_named(c.step_b if run == "B" else c.step_a for c in candidates),
        f"{sites:,}" if trial.method is Method.PATH else "–",
        _wrote(trial.chosen_token, origins),
        "✓ yes" if trial.flips else "✗ no",
        signed(trial.margin_without),
        signed(trial.margin),
        moved,
    )


def _neutral_row(trial: NeutralTrial, proof: ProofResult, origins: OriginResult) -> tuple[str, ...]:
    steps = steps_named(proof.candidates[i].step_b for i in trial.candidates)
    wrote = f"A {_wrote(trial.token_a, origins)}, B {_wrote(trial.token_b, origins)}"
    agree = "✓ they agree" if trial.agree else "✗ they differ"
    return ("A and B", "row-independent kernels", f"{steps} of B", "–", wrote, agree, "–", "–", "–")


def _wrote(token: int, origins: OriginResult) -> str:
    texts = {known.id: known.text for known in (origins.token_a, origins.token_b)}
    return quoted_text(texts[token]) if token in texts else f"token {token}"


def _request_row(request: RequestDiff) -> tuple[str, ...]:
    found = request.divergence
    if found is not None:
        split = (str(found.position), quoted_text(found.token_a.text), quoted_text(found.token_b.text))
    elif request.prompt_difference is not None:
        split = (f"prompt, {request.prompt_difference}", "–", "–")
    else:
        split = ("–", "–", "–")
    ends = (f"{e.output_tokens} ({page_text(e.reason)})" for e in (request.ending_a, request.ending_b))
    rows = f"{request.differing_kv_rows} of {request.kv_rows}" if request.kv_rows else "–"
    return (page_text(request.id_a), str(request.prompt_tokens), *ends, *split, rows)


def _batch_rows(run: str, batch: BatchRecord) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (
            run,
            str(batch.step),
            page_text(s.request),
            page_text(s.kind),
            str(s.first_position),
            str(s.rows),
            str(s.wanted_logits),
            str(s.cached_tokens),
        )
        for s in batch.segments[:LONGEST_TABLE]
    )


def _drafts(drafts: DraftStatistics) -> tuple[str, str]:
    return f"{drafts.accepted_tokens} of {drafts.proposed_tokens}", f"{100 * drafts.acceptance:.0f} %"


def _or_dash(value: str | None) -> str:
    return "–" if value is None else short_text(value, 200)
