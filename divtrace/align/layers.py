"""Per pair of KV rows: the lowest layer at which they differ, found from hashes in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.index import PIECE_ROWS, Integers
from divtrace.align.runs import RunPair


@dataclass(frozen=True, slots=True)
class LayerDifferences:
    """For each pair of rows: lowest differing layer (the number of layers where all are equal), and which
    of K and V differ there. Arrays of shape (pairs,).
    """

    first_layer: Integers
    key_differs: npt.NDArray[np.bool_]
    value_differs: npt.NDArray[np.bool_]


def first_layer_differences(runs: RunPair, records_a: Integers, records_b: Integers) -> LayerDifferences:
    """Compare key and value hashes of `records_a` with those of `records_b`, pair by pair."""
    layers = runs.a.layers
    result = LayerDifferences(
        np.full(records_a.size, layers, np.int64),
        np.zeros(records_a.size, bool),
        np.zeros(records_a.size, bool),
    )
    for start in range(0, records_a.size if layers else 0, PIECE_ROWS):
        piece = slice(start, start + PIECE_ROWS)
        key, value = (
            runs.a.gather("rows", column, records_a[piece]) != runs.b.gather("rows", column, records_b[piece])
            for column in ("key_hash", "value_hash")
        )
        either = key | value
        first = either.argmax(axis=1)
        rows = np.arange(first.size)
        result.first_layer[piece] = np.where(either[rows, first], first, layers)
        result.key_differs[piece] = key[rows, first]
        result.value_differs[piece] = value[rows, first]
    return result


def magnitude_drift(runs: RunPair, records_a: Integers, records_b: Integers, layer: int) -> tuple[float, float]:
    """Largest |magnitude in B - magnitude in A| over these pairs' K and V at `layer`, and the same over
    A's magnitude.

    Magnitudes are the largest absolute values of rows: a lower bound of how far any element moved. Zero
    means that the rows differ in bits but their largest elements agree.
    """
    largest, relative = 0.0, 0.0
    if layer >= runs.a.layers:
        return largest, relative
    for column in ("key_magnitude", "value_magnitude"):
        for start in range(0, records_a.size, PIECE_ROWS):
            piece = slice(start, start + PIECE_ROWS)
            left = runs.a.gather("rows", column, records_a[piece])[:, layer].astype(np.float64)
            right = runs.b.gather("rows", column, records_b[piece])[:, layer].astype(np.float64)
            moved = np.abs(right - left)
            largest = max(largest, float(np.max(moved, initial=0.0)))
            relative = max(relative, float(np.max(moved / np.maximum(np.abs(left), 1e-30), initial=0.0)))
    return largest, relative
