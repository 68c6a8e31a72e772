"""The tables of a report, as rows of text: readable without a script, by a screen reader and in print."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.blame.records import BlameResult
from divtrace.diff.records import DraftStatistics, RequestDiff
from divtrace.origin.records import BatchRecord, OriginResult
from divtrace.proof.records import Direction, Trial
from divtrace.render.text import counted, listed, logit, positions
from divtrace.report.page_text import page_text, short_text
from divtrace.report.story import crossing_sentence, main_crossing, origin_of, who_joined

MARKS = {True: "✓ holds", False: "✗ fails", None: "– not asked"}
LONGEST_TABLE = 200


@dataclass(frozen=True, slots=True)
class PageTable:
    """A table: caption, column heads, rows of cells. `note` says what was left out."""

    caption: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChainCard:
    """One station between the cause and the flip."""

    name: str
    where: str
    lines: tuple[str, ...]


def controls_table(blame: BlameResult) -> PageTable:
    """What was checked first."""
    rows = tuple((page_text(c.name), MARKS[c.holds], page_text(c.evidence)) for c in blame.controls)
    return PageTable("Controls: what must hold before anything is blamed", ("control", "result", "evidence"), rows)


def trials_table(blame: BlameResult) -> PageTable | None:
    """Every counterfactual re-run, None when none was made."""
    if blame.proof is None or blame.origins is None or not blame.proof.trials:
        return None
    heads = ("run", "changed", "sites", "wrote", "same as the other run?", "margin before", "margin after", "moved by")
    rows = tuple(_trial_row(trial, blame.origins) for trial in blame.proof.trials)
    return PageTable(
        "Counterfactuals: one run again, with only the named steps on the other run's kernels",
        heads,
        rows,
        "Margin: the logit of the run's own token minus that of the other run's token. It flips below zero.",
    )


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
        "differing KV rows",
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


def chain(blame: BlameResult) -> tuple[ChainCard, ...]:
    """Origin, carriers and flip as three stations; empty where no origin was found."""
    origins, origin = blame.origins, origin_of(blame)
    if origins is None or origin is None:
        return ()
    return (_origin_card(blame), _carrier_card(origins), _flip_card(origins))


def _origin_card(blame: BlameResult) -> ChainCard:
    origin = origin_of(blame)
    assert origin is not None
    joined, crossing = who_joined(origin), main_crossing(origin)
    lines = [f"Joined the batch: {joined}."] if joined else []
    lines += [f"{crossing_sentence(crossing)}."] if crossing else [f"What the trace shows: {origin.kind.value}."]
    first = (
        f"layer {origin.layer}, {positions(origin.positions)}" if origin.tensor != "logits" else "the logits themselves"
    )
    moved = f", moved by {origin.drift.magnitude:.2g}" if origin.drift is not None and origin.drift.magnitude else ""
    lines.append(f"First difference: {first}{moved}.")
    more = len(blame.origins.origins) - 1 if blame.origins is not None else 0
    lines += [f"{counted(more, 'more origin')} found, see the timeline."] if more else []
    return ChainCard("Origin", f"step {origin.step_a} of A, step {origin.step_b} of B", tuple(lines))


def _carrier_card(origins: OriginResult) -> ChainCard:
    carriers = origins.carriers
    if not carriers.rows:
        return ChainCard(
            "Carriers", "none", ("No later row holds the difference: the decision read the origin’s rows.",)
        )
    lines = [f"{counted(carriers.rows, 'KV row')} read by the decision were computed from differing rows."]
    history = origins.divergence.flip if origins.divergence is not None else None
    if history is not None and history.median_drift_before is not None:
        lines.append(
            f"Logits drifted by {history.median_drift_before:.2g} (median), {history.largest_drift_before:.2g} at most "
            "and changed no token: every gap was larger."
        )
    return ChainCard("Carriers", positions(carriers.positions), tuple(lines))


def _flip_card(origins: OriginResult) -> ChainCard:
    where = f"position {origins.position}, step {origins.step_a} of A, step {origins.step_b} of B"
    found = origins.divergence
    if found is None:
        return ChainCard("Decision", where, ("Both runs decided alike; the logits differ.",))
    lines = [f"A wrote {_quoted(found.token_a.text)}, B wrote {_quoted(found.token_b.text)}."]
    if found.gap_a is not None and found.flip.differential_drift is not None:
        sign = "smaller" if found.gap_a <= abs(found.flip.differential_drift) else "larger"
        lines.append(f"Gap in A {found.gap_a:.3g}, {sign} than the drift {abs(found.flip.differential_drift):.3g}.")
    lines.append(f"{found.flip.reason[:1].upper()}{found.flip.reason[1:]}.")
    return ChainCard("Flip" if origins.flipped else "Decision", where, tuple(lines))


def _trial_row(trial: Trial, origins: OriginResult) -> tuple[str, ...]:
    restores = trial.direction is Direction.RESTORE
    run, other = ("B", "A") if restores else ("A", "B")
    steps = [origins.candidates[i].step_b if restores else origins.candidates[i].step_a for i in trial.candidates]
    tokens = {token.id: token.text for token in (origins.token_a, origins.token_b)}
    wrote = _quoted(tokens[trial.chosen_token]) if trial.chosen_token in tokens else f"token {trial.chosen_token}"
    moved = "–" if trial.drift is None else f"{trial.drift:+.3g}"
    return (
        f"{run} again",
        f"step {listed(map(str, steps), 6)} on {other}’s kernels",
        str(sum(len(origins.candidates[i].sites) for i in trial.candidates)),
        wrote,
        "✓ yes" if trial.flips else "✗ no",
        logit(trial.margin_without),
        logit(trial.margin),
        moved,
    )


def _request_row(request: RequestDiff) -> tuple[str, ...]:
    found = request.divergence
    if found is not None:
        split = (str(found.position), _quoted(found.token_a.text), _quoted(found.token_b.text))
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


def _quoted(text: str) -> str:
    return f"“{short_text(text, 32)}”".replace("\n", "\\n")
