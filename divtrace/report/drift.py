"""Drift of each compared decision, in whole columns. Must not know pages."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.index import PIECE_ROWS
from divtrace.align.runs import RunPair
from divtrace.align.timeline import DecisionPairs

Doubles = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DecisionDrift:
    """Shape (decisions,), float64, never negative; NaN where a logit is not among the other run's top-k.

    `margin`: |(x - y in B) - (x - y in A)| with x, y the two best tokens of A: what a gap must be larger than.
    `largest`: the largest |drift| of any logit that both runs recorded.
    """

    margin: Doubles
    largest: Doubles


def decision_drift(runs: RunPair, decided: DecisionPairs) -> DecisionDrift:
    """Compare the processed top-k logits of decisions that had equal input tokens."""
    count = decided.positions.size
    result = DecisionDrift(np.full(count, np.nan), np.full(count, np.nan))
    for start in range(0, count, PIECE_ROWS):
        piece = slice(start, start + PIECE_ROWS)
        ids_a = runs.a.gather("sampled", "processed_top_ids", decided.records_a[piece])
        ids_b = runs.b.gather("sampled", "processed_top_ids", decided.records_b[piece])
        values_a = runs.a.gather("sampled", "processed_top_values", decided.records_a[piece]).astype(np.float64)
        values_b = runs.b.gather("sampled", "processed_top_values", decided.records_b[piece]).astype(np.float64)
        moved = _moved(ids_a, values_a, ids_b, values_b)
        if moved.shape[1] >= 2:
            result.margin[piece] = np.abs(moved[:, 0] - moved[:, 1])
        result.largest[piece] = np.max(np.abs(moved), axis=1, initial=-1.0, where=np.isfinite(moved))
    result.largest[result.largest < 0] = np.nan
    return result


def _moved(
    ids_a: npt.NDArray[np.uint32], values_a: Doubles, ids_b: npt.NDArray[np.uint32], values_b: Doubles
) -> Doubles:
    """B minus A of each of A's top-k tokens, shape of `ids_a`; NaN where B did not record the token."""
    moved = np.full(values_a.shape, np.nan)
    for column in range(ids_a.shape[1]):
        same = ids_b == ids_a[:, column : column + 1]
        rows, places = np.nonzero(same)
        moved[rows, column] = values_b[rows, places] - values_a[rows, column]
    return moved
