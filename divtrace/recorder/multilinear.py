"""A keyed hash of K/V rows that a GPU computes where the rows lie. Must not know layers, steps or files.

The hash of a row of n 16-bit words w_1 .. w_n is k_0 + k_1 w_1 + .. + k_n w_n mod 2**64, with fixed pseudo-random
64-bit keys, k_1 .. k_n odd. A sum of integers has no order, so every backend gives the same number. It is the
multilinear family of Lemire and Kaser, "Strongly universal string hashing is fast" (The Computer Journal 57(11), 2014),
on 16-bit words in place of 32-bit ones and with odd keys.

Chance of a miss, over the choice of keys, for rows whose differing words differ by d_i: none where a single word
differs (an odd key has an inverse); else at most 2**-(63 - v), where v <= 15 is the smallest count of trailing zero
bits of a d_i. Proof: with k_i = 2 a_i + 1 for the word of that count, equal hashes need a_i d_i = c mod 2**63 for a c
that the other words fix, and at most 2**v of the 2**63 values of a_i give that. Not cryptographic: it finds accidents,
not forgeries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from divtrace.recorder.hashing import magnitudes_of_patterns

Hashes = npt.NDArray[np.uint64]

PIECE_WORDS = 1 << 22
"""Words hashed at once: a word takes 16 bytes on its way, and a long prefill holds hundreds of millions."""


@lru_cache(maxsize=16)
def multilinear_keys(words: int) -> Hashes:
    """Keys k_0 .. k_words, uint64 (words + 1,): the stream of splitmix64 from seed 0, all but the first made odd.

    splitmix64: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014).
    """
    mixed = np.arange(1, words + 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    keys = mixed ^ (mixed >> np.uint64(31))
    keys[1:] |= np.uint64(1)
    keys.flags.writeable = False
    return keys


def multilinear_hashes(array: npt.NDArray[Any]) -> Hashes:
    """On the host: the hash of the bytes of `array[i]` for each i, uint64 (rows,). A row's bytes are even in number."""
    if not len(array):
        return np.zeros(0, np.uint64)
    words = np.ascontiguousarray(array).reshape(len(array), -1).view("<u2")
    keys = multilinear_keys(words.shape[1])
    pieces = (words[piece].astype(np.uint64) @ keys[1:] for piece in _pieces(*words.shape))
    return np.concatenate(list(pieces)) + keys[0]


class MultilinearGraph:
    """The same hash and each row's magnitude as graph operations: few, whatever the number of rows.

    Magnitudes are found among bit patterns, as on the host, so no backend's idea of a maximum of NaN matters.
    """

    def __init__(self, rows: mx.array) -> None:
        """Start on `rows`, (rows, ...) of a floating type with 2 or 4 bytes; returns before the device has finished."""
        flat = rows.reshape(rows.shape[0], -1)
        self._dtype = rows.dtype
        self._words = flat.shape[1] * rows.dtype.size // 2
        keys = _factors(self._words)
        pattern_type = mx.uint16 if rows.dtype.size == 2 else mx.uint32
        sign_off = mx.array((1 << (8 * rows.dtype.size - 1)) - 1, pattern_type)
        self._sums: list[mx.array] = []
        self._patterns: list[mx.array] = []
        for piece in _pieces(rows.shape[0], self._words):
            part = flat[piece] if piece.stop - piece.start < rows.shape[0] else flat
            self._sums.append(mx.sum(part.view(mx.uint16).astype(mx.uint64) * keys, axis=-1))
            self._patterns.append(mx.max(part.view(pattern_type) & sign_off, axis=-1))
        mx.async_eval(*self._sums, *self._patterns)  # type: ignore[no-untyped-call]

    def hashes(self) -> Hashes:
        """Wait for the device; uint64 (rows,)."""
        return np.concatenate([np.array(part) for part in self._sums]) + multilinear_keys(self._words)[0]

    def magnitudes(self) -> npt.NDArray[np.float32]:
        """Wait for the device; the largest absolute value of each row, float32 (rows,), NaN where the row holds one."""
        patterns = np.concatenate([np.array(part) for part in self._patterns])
        return magnitudes_of_patterns(patterns, is_bfloat16=self._dtype == mx.bfloat16)


@lru_cache(maxsize=16)
def _factors(words: int) -> mx.array:
    """k_1 .. k_words where the device finds them, uint64 (words,)."""
    return mx.array(multilinear_keys(words)[1:])


def _pieces(rows: int, words: int) -> Iterator[slice]:
    """Cut `rows` rows of `words` words each into slices of bounded size."""
    step = max(1, PIECE_WORDS // max(words, 1))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
