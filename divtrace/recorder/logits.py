"""What a trace keeps of a logits row: the largest few, the log-sum-exp, a hash.

Must not know tables or requests.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import xxhash

BLOCKS_PER_RANK = 64


@dataclass(frozen=True, slots=True)
class TopLogits:
    """The k largest of each row, lowest id first on ties: ids uint32 and values float32, (rows, k)."""

    ids: npt.NDArray[np.uint32]
    values: npt.NDArray[np.float32]


def top_logits(logits: npt.NDArray[np.float32], k: int) -> TopLogits:
    """Exact top-k of every row of (rows, vocabulary); NaN ranks as minus infinity.

    The k-th largest of many block maxima bounds the k-th largest element from below, so only elements at
    least that large need sorting.
    """
    rows = len(logits)
    ids = np.empty((rows, k), np.uint32)
    ranked = np.where(np.isnan(logits), -np.inf, logits) if _has_nan(logits) else logits
    bounds = _lower_bounds(ranked, k)
    for row in range(rows):
        candidates = np.flatnonzero(ranked[row] >= bounds[row])
        order = np.argsort(-ranked[row, candidates], kind="stable")[:k]
        ids[row] = candidates[order]
    return TopLogits(ids, np.take_along_axis(logits, ids.astype(np.int64), axis=1))


def log_sum_exp(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Natural logarithm of the summed exponentials of each row: float32 exponentials, summed in float64.

    Row by row, so that the exponentials stay in the processor's cache.
    """
    results = np.empty(len(logits))
    exponentials = np.empty(logits.shape[1], np.float32)
    with np.errstate(invalid="ignore", divide="ignore"):
        for index, row in enumerate(logits):
            largest = row.max()
            shift = largest if np.isfinite(largest) else np.float32(0)
            np.exp(np.subtract(row, shift, out=exponentials), out=exponentials)
            results[index] = np.log(exponentials.sum(dtype=np.float64)) + shift
    return results


def hash_logits(logits: npt.NDArray[np.float32]) -> list[int]:
    """XXH3-64 of each row's bytes."""
    return [xxhash.xxh3_64_intdigest(np.ascontiguousarray(row).data) for row in logits]


def are_finite(logits: npt.NDArray[np.float32]) -> bool:
    """True when no element is NaN or Inf. A sum carries either through, and is cheaper than a mask."""
    with np.errstate(invalid="ignore", over="ignore"):
        return bool(np.isfinite(logits.sum()) or np.isfinite(logits).all())


def _has_nan(logits: npt.NDArray[np.float32]) -> bool:
    with np.errstate(invalid="ignore"):
        return bool(np.isnan(logits.max(initial=-np.inf)))


def _lower_bounds(logits: npt.NDArray[np.float32], k: int) -> npt.NDArray[np.float32]:
    rows, vocabulary = logits.shape
    blocks = max(k, min(vocabulary // BLOCKS_PER_RANK, k * BLOCKS_PER_RANK))
    depth = vocabulary // blocks
    maxima = logits[:, : depth * blocks].reshape(rows, depth, blocks).max(axis=1)
    return np.partition(maxima, blocks - k, axis=1)[:, blocks - k]
