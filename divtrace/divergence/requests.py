"""One paired request, compared: tokens, then logits, then KV rows."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from divtrace.align.index import Integers, TraceIndex
from divtrace.align.layers import first_layer_differences
from divtrace.align.pairing import RequestPair
from divtrace.align.runs import RunPair
from divtrace.align.timeline import DecisionPairs, RowPairs, Timeline
from divtrace.divergence import logits
from divtrace.divergence.records import (
    DraftStatistics,
    Ending,
    LogitsDifference,
    RequestDiff,
    RowDifference,
    TokenDivergence,
)
from divtrace.trace.schema import Level


def diff_request(runs: RunPair, pair: RequestPair) -> RequestDiff:
    """Compare one request. Where prompts differ nothing past them is compared."""
    timeline = runs.timeline(pair)
    decided = runs.decisions(timeline)
    with_logits = runs.both_have(Level.LOGITS)
    first_logits: LogitsDifference | None = None
    drifting = np.zeros(0, np.int64)
    if with_logits:
        first_logits, drifting = logits.first_logits_difference(runs, decided)
    first_row, compared_rows, differing_rows, unmatched_rows = _diff_rows(runs, timeline, decided)
    return RequestDiff(
        id_a=pair.id_a,
        id_b=pair.id_b,
        matched_by=pair.matched_by,
        prompt_tokens=timeline.prompt_tokens,
        compared_tokens=max(timeline.decisions_end - timeline.prompt_tokens, 0),
        prompt_difference=timeline.prompt_difference,
        divergence=_divergence(runs, timeline, decided, drifting),
        first_logits_difference=first_logits,
        first_row_difference=first_row,
        decisions_with_logits=int(decided.positions.size) if with_logits else 0,
        kv_rows=compared_rows,
        differing_kv_rows=differing_rows,
        unmatched_kv_rows=unmatched_rows,
        ending_a=_ending(runs.a, pair.number_a),
        ending_b=_ending(runs.b, pair.number_b),
        drafts_a=_drafts(runs.a, pair.number_a),
        drafts_b=_drafts(runs.b, pair.number_b),
        gaps=logits.gap_bins(runs.a, decided.records_a) if runs.a.has(Level.LOGITS) else (),
    )


def _diff_rows(runs: RunPair, timeline: Timeline, decided: DecisionPairs) -> tuple[RowDifference | None, int, int, int]:
    """First differing row, rows compared, rows that differ, rows without a counterpart."""
    if not runs.can_compare_rows or timeline.prompt_difference is not None:
        return None, 0, 0, 0
    rows = runs.rows(timeline, decided)
    different = runs.a.row_digests[rows.records_a] != runs.b.row_digests[rows.records_b]
    first = _first_row(runs, rows, different) if different.any() else None
    return first, int(rows.positions.size), int(np.count_nonzero(different)), rows.unmatched


def _first_row(runs: RunPair, rows: RowPairs, different: npt.NDArray[np.bool_]) -> RowDifference:
    """The lowest (layer, position) among the differing rows of run A's earliest step that has any."""
    places = np.flatnonzero(different)
    steps = runs.a.row_steps[rows.records_a[places]]
    places = places[steps == steps.min()]
    records_a, records_b = rows.records_a[places], rows.records_b[places]
    found = first_layer_differences(runs, records_a, records_b)
    best = int(np.lexsort((rows.positions[places], found.first_layer))[0])
    key, value = bool(found.key_differs[best]), bool(found.value_differs[best])
    return RowDifference(
        position=int(rows.positions[places[best]]),
        layer=int(found.first_layer[best]),
        tensor="both" if key and value else "key" if key else "value",
        step_a=int(runs.a.row_steps[records_a[best]]),
        step_b=int(runs.b.row_steps[records_b[best]]),
    )


def _divergence(
    runs: RunPair, timeline: Timeline, decided: DecisionPairs, drifting: Integers
) -> TokenDivergence | None:
    position = timeline.divergence
    if position is None:
        return None
    id_a, id_b = int(timeline.tokens_a[position]), int(timeline.tokens_b[position])
    token_a, token_b = logits.token_of(runs.a, id_a), logits.token_of(runs.b, id_b)
    place = int(np.searchsorted(decided.positions, position))
    recorded = place < decided.positions.size and int(decided.positions[place]) == position
    nothing = logits.DecisionLogits((), None, {}, False)
    a = logits.decision_logits(runs.a, int(decided.records_a[place])) if recorded else nothing
    b = logits.decision_logits(runs.b, int(decided.records_b[place])) if recorded else nothing
    before = drifting[decided.positions[drifting] < position]
    return TokenDivergence(
        position=position,
        output_index=position - timeline.prompt_tokens,
        token_a=token_a,
        token_b=token_b,
        step_a=int(decided.steps_a[place]) if recorded else None,
        step_b=int(decided.steps_b[place]) if recorded else None,
        top_a=a.top,
        top_b=b.top,
        gap_a=a.gap,
        gap_b=b.gap,
        drifts=(logits.drift_of(a, b, token_a), logits.drift_of(a, b, token_b)),
        flip=logits.explain_flip(a, b, id_a, id_b, logits.shared_drifts(runs, decided, before)),
    )


def _ending(index: TraceIndex, number: int) -> Ending:
    tokens = int(index.output(number).size)
    step, reason = index.finished_steps.get(number, (None, "unfinished"))
    return Ending(reason, step, tokens)


def _drafts(index: TraceIndex, number: int) -> DraftStatistics:
    mine = index.column("drafts", "request") == number
    proposed = index.column("drafts", "proposed_count")[mine]
    accepted = index.column("drafts", "accepted_tokens")[mine]
    return DraftStatistics(int(mine.sum()), int(proposed.sum()), int(accepted.sum()))
