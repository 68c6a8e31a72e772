"""Decisions around a divergence: top logits, gaps, drift in both units, and whether drift explains the
flip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.index import PIECE_ROWS, Integers, TraceIndex
from divtrace.align.runs import RunPair
from divtrace.align.timeline import DecisionPairs
from divtrace.divergence.records import Flip, GapBin, LogitDrift, LogitsDifference, Token, TopLogit
from divtrace.trace.schema import Level

GAP_LIMITS = (0.0, 0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True, slots=True)
class DecisionLogits:
    """What one run recorded of one decision."""

    top: tuple[TopLogit, ...]
    gap: float | None
    by_token: Mapping[int, float]
    sampled_at_random: bool


def token_of(index: TraceIndex, token: int) -> Token:
    """A token with its text; an id whose text the trace lacks gets an empty one."""
    return Token(token, index.trace.token_text(token).decode("utf-8", "backslashreplace"))


def decision_logits(index: TraceIndex, record: int) -> DecisionLogits:
    """Processed logits of record `record` of `sampled`; empty below level logits."""
    random_number = float(index.trace.column("sampled", "random_number", record, record + 1)[0])
    at_random = not math.isnan(random_number)
    if not index.has(Level.LOGITS):
        return DecisionLogits((), None, {}, at_random)
    where = np.array([record], np.int64)
    ids = index.gather("sampled", "processed_top_ids", where)[0].tolist()
    values = index.gather("sampled", "processed_top_values", where)[0].tolist()
    top = tuple(TopLogit(token_of(index, token), value) for token, value in zip(ids, values, strict=True))
    gap = float(index.gaps[record])
    by_token = dict(zip(ids, values, strict=True))
    chosen = int(index.trace.column("sampled", "chosen", record, record + 1)[0])
    by_token.setdefault(chosen, float(index.trace.column("sampled", "chosen_logit", record, record + 1)[0]))
    return DecisionLogits(top, gap, by_token, at_random)


def ulps_between(a: float, b: float) -> int | None:
    """Float32 numbers between two logits, None where one is not finite."""
    if not (math.isfinite(a) and math.isfinite(b)):
        return None
    bits = np.array([a, b], np.float32).view(np.int32).astype(np.int64)
    ordered = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return int(abs(ordered[1] - ordered[0]))


def drift_of(a: DecisionLogits, b: DecisionLogits, token: Token) -> LogitDrift:
    """How far one token's logit moved from A to B."""
    left, right = a.by_token.get(token.id), b.by_token.get(token.id)
    if left is None or right is None:
        return LogitDrift(token, left, right, None, None)
    return LogitDrift(token, left, right, right - left, ulps_between(left, right))


def explain_flip(
    a: DecisionLogits, b: DecisionLogits, token_a: int, token_b: int, before: npt.NDArray[np.float64]
) -> Flip:
    """Judge a flip by the criterion that `Flip` states; `before` holds |drifts| of earlier decisions."""
    history = (float(before.max()), float(np.median(before))) if before.size else (None, None)
    values = [run.by_token.get(token) for run in (a, b) for token in (token_a, token_b)]
    if any(value is None for value in values):
        reason = "a deciding logit is not among the recorded top-k"
        return Flip(None, f"{reason}; record with level logits and a larger top-k", None, None, None, *history)
    x_a, y_a, x_b, y_b = (float(value) for value in values if value is not None)
    margin_a, margin_b = x_a - y_a, y_b - x_b
    moved = (y_b - y_a) - (x_b - x_a)
    explained, reason = _judge(margin_a, margin_b, moved, a.sampled_at_random or b.sampled_at_random)
    return Flip(explained, reason, margin_a, margin_b, moved, *history)


def _judge(margin_a: float, margin_b: float, moved: float, at_random: bool) -> tuple[bool | None, str]:
    if not all(math.isfinite(value) for value in (margin_a, margin_b, moved)):
        return None, "a deciding logit is not finite"
    if at_random:
        return None, "the token was drawn at random, so its logit need not be the largest"
    if margin_a < 0 or margin_b < 0:
        run = "A" if margin_a < 0 else "B"
        return (
            False,
            f"run {run} chose a token whose logit is not the larger one: the selection differs",
        )
    if moved <= 0:
        return (
            False,
            "the deciding logits did not move against each other: the selection differs",
        )
    return (
        True,
        "the deciding logits moved against each other by more than the gap; each run chose the larger one",
    )


def first_logits_difference(runs: RunPair, decided: DecisionPairs) -> tuple[LogitsDifference | None, Integers]:
    """The first decision whose raw logits differ, and the places in `decided` of all that do."""
    different = runs.a.logits_hashes[decided.records_a] != runs.b.logits_hashes[decided.records_b]
    places = np.flatnonzero(different).astype(np.int64)
    if places.size == 0:
        return None, places
    first = int(places[0])
    steps = int(decided.steps_a[first]), int(decided.steps_b[first])
    return LogitsDifference(int(decided.positions[first]), *steps), places


def shared_drifts(runs: RunPair, decided: DecisionPairs, places: Integers) -> npt.NDArray[np.float64]:
    """|drift| of each raw logit that is in both runs' top-k, over the decisions at `places`; shape
    (logits,).
    """
    found: list[npt.NDArray[np.float64]] = []
    for start in range(0, places.size, PIECE_ROWS):
        piece = places[start : start + PIECE_ROWS]
        ids_a = runs.a.gather("sampled", "top_ids", decided.records_a[piece])
        ids_b = runs.b.gather("sampled", "top_ids", decided.records_b[piece])
        values_a = runs.a.gather("sampled", "top_values", decided.records_a[piece]).astype(np.float64)
        values_b = runs.b.gather("sampled", "top_values", decided.records_b[piece]).astype(np.float64)
        for column in range(ids_a.shape[1]):
            same = ids_b == ids_a[:, column : column + 1]
            rows, places_b = np.nonzero(same)
            found.append(np.abs(values_b[rows, places_b] - values_a[rows, column]))
    drifts = np.concatenate(found) if found else np.zeros(0)
    return drifts[np.isfinite(drifts)]


def gap_bins(index: TraceIndex, records: Integers) -> tuple[GapBin, ...]:
    """How many decisions were near ties: exact, within 0.001, 0.01, 0.1, 1, and the rest. Not-a-number
    counts as rest.
    """
    bins = np.searchsorted(np.array(GAP_LIMITS), index.gaps[records].astype(np.float64))
    counts = np.bincount(bins, minlength=len(GAP_LIMITS) + 1)
    return tuple(GapBin(limit, int(count)) for limit, count in zip((*GAP_LIMITS, None), counts, strict=True))
