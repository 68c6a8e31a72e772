"""Exact hashes and magnitudes of K/V rows on the host, and digests over hashes. Must not know tables or files.

The hash is XXH3 with 64 bits over the row's own bytes (no rounding, no conversion): equal rows always hash
equal, and two different rows hash equal with a chance of 2**-64 each time. It is fast, not cryptographic: it
finds accidents, and somebody who wants to forge a collision can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from engine.observer import LayerRows


@dataclass(frozen=True, slots=True)
class HashedRows:
    """K/V of one forward: hashes uint64 and magnitudes float32 (rows, layers), `digest` uint64 (rows,)."""

    key_hash: npt.NDArray[np.uint64]
    value_hash: npt.NDArray[np.uint64]
    key_magnitude: npt.NDArray[np.float32]
    value_magnitude: npt.NDArray[np.float32]
    digest: npt.NDArray[np.uint64]

    @property
    def is_finite(self) -> bool:
        """True when no row holds NaN or Inf."""
        return bool(np.isfinite(self.key_magnitude).all() and np.isfinite(self.value_magnitude).all())


def as_numpy(array: Any) -> npt.NDArray[Any]:
    """A numpy array with the same bytes; bfloat16, which numpy lacks, as its uint16 patterns.

    An mx.array must be evaluated already: reading it then computes nothing that the run would not have computed. Its
    memory is shared where the host can see it: read it before the next step.
    """
    if isinstance(array, np.ndarray):
        return array.view(np.uint16) if array.dtype.kind == "V" else array
    if "bfloat16" in str(array.dtype):
        import mlx.core as mx

        return np.array(array.view(mx.uint16), copy=False)
    return np.array(array, copy=False)


def hash_rows(array: npt.NDArray[Any]) -> list[int]:
    """XXH3-64 of the bytes of `array[i]` for each i."""
    if not len(array):
        return []
    row_bytes = array[0].nbytes
    flat = np.ascontiguousarray(array).data.cast("B")
    hash_bytes = xxhash.xxh3_64_intdigest
    return [hash_bytes(flat[start : start + row_bytes]) for start in range(0, len(flat), row_bytes)]


def row_magnitudes(array: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Largest absolute value of each `array[i]`, float32; NaN where the row holds one."""
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    if rows.dtype == np.uint16:
        patterns = (rows & 0x7FFF).max(axis=1, initial=0)
        return (patterns.astype(np.uint32) << 16).view(np.float32)
    return np.abs(rows).max(axis=1, initial=0).astype(np.float32)


def hash_kv_rows(layers: Sequence[LayerRows], rows: int) -> HashedRows:
    """Hash every (layer, row) of one forward of `rows` packed rows."""
    sides = ([as_numpy(layer.keys) for layer in layers], [as_numpy(layer.values) for layer in layers])
    (key_hash, key_magnitude), (value_hash, value_magnitude) = (_hash_side(side, rows) for side in sides)
    return HashedRows(key_hash, value_hash, key_magnitude, value_magnitude, digest_rows(key_hash, value_hash))


def _hash_side(layers: Sequence[npt.NDArray[Any]], rows: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]:
    """Hashes and magnitudes (rows, layers). Equal layers are stacked: one pass costs less than many small ones."""
    if len({(layer.shape, layer.dtype) for layer in layers}) == 1:
        stacked = np.stack(layers)
        flat = stacked.reshape(len(layers) * rows, *stacked.shape[2:])
        hashes = np.array(hash_rows(flat), np.uint64).reshape(len(layers), rows)
        magnitudes = row_magnitudes(flat).reshape(len(layers), rows)
    else:
        hashes = np.array([hash_rows(layer) for layer in layers], np.uint64).reshape(len(layers), rows)
        magnitudes = np.array([row_magnitudes(layer) for layer in layers], np.float32).reshape(len(layers), rows)
    return np.ascontiguousarray(hashes.T), np.ascontiguousarray(magnitudes.T)


def digest_rows(key_hash: npt.NDArray[np.uint64], value_hash: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One XXH3-64 per row, of its K hashes of all layers, then its V hashes (8 little-endian bytes each)."""
    return np.array(hash_rows(np.concatenate([key_hash, value_hash], axis=1).astype("<u8")), np.uint64)


def digest_step(row_digests: npt.NDArray[np.uint64]) -> int:
    """XXH3-64 of the step's row digests in row order, each as 8 little-endian bytes."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(row_digests, "<u8").tobytes())
