"""Exact hashes and magnitudes of K/V rows on the host, and digests over hashes. Must not know tables or files.

The hash is XXH3 with 64 bits over the row's own bytes (no rounding, no conversion): equal rows always hash
equal, and two different rows hash equal with a chance of 2**-64 each time, if it does what a random function would:
nobody has proven a bound. It is fast, not cryptographic: it finds accidents, and somebody who wants to forge a
collision can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

PIECE_BYTES = 128 << 10
"""Fresh memory taken at once: more the system hands out page by page, which costs more than the work on it."""


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
    """Largest absolute value of each `array[i]`, float32; NaN where the row holds one. uint16 stands for bfloat16.

    Found among bit patterns without their sign: there a larger absolute value is a larger integer, and NaN the largest.
    """
    rows = array.reshape(len(array), math.prod(array.shape[1:]))
    if rows.dtype not in (np.uint16, np.float16, np.float32):
        return np.abs(rows).max(axis=1, initial=0).astype(np.float32)
    is_single = rows.dtype == np.float32
    patterns: npt.NDArray[Any] = np.ascontiguousarray(rows).view(np.uint32 if is_single else np.uint16)
    largest = np.empty(len(rows), patterns.dtype)
    step = max(1, PIECE_BYTES // max(patterns[:1].nbytes, 1))
    for start in range(0, len(rows), step):
        piece = patterns[start : start + step]
        (piece & (0x7FFFFFFF if is_single else 0x7FFF)).max(axis=1, initial=0, out=largest[start : start + step])
    return magnitudes_of_patterns(largest, is_bfloat16=rows.dtype == np.uint16)


def magnitudes_of_patterns(patterns: npt.NDArray[Any], is_bfloat16: bool) -> npt.NDArray[np.float32]:
    """The numbers that unsigned bit patterns stand for, as float32: uint32 for float32, uint16 for the half types."""
    if is_bfloat16:
        return (patterns.astype(np.uint32) << 16).view(np.float32)
    return patterns.view(np.float16 if patterns.dtype == np.uint16 else np.float32).astype(np.float32)


def digest_rows(key_hash: npt.NDArray[np.uint64], value_hash: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """One XXH3-64 per row, of its K hashes of all layers, then its V hashes (8 little-endian bytes each)."""
    return np.array(hash_rows(np.concatenate([key_hash, value_hash], axis=1).astype("<u8")), np.uint64)


def digest_step(row_digests: npt.NDArray[np.uint64]) -> int:
    """XXH3-64 of the step's row digests in row order, each as 8 little-endian bytes."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(row_digests, "<u8").tobytes())
