"""Hash functions for K/V rows by the name that a trace's header gives them. Must not know tables or files.

`xxh3_64` reads the bytes on the host, where a CPU has them already. `multilinear_64` is computed in MLX's graph, so
that of a GPU's rows only hashes and magnitudes leave the device. Row digests over the hashes are XXH3 for both.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from divtrace.errors import DivtraceError
from divtrace.recorder.hashing import PIECE_BYTES, HashedRows, as_numpy, digest_rows, hash_rows, row_magnitudes
from divtrace.recorder.multilinear import MultilinearGraph, multilinear_hashes
from divtrace.trace.schema import GRAPH_HASH_NAME, HASH_NAME, HASH_VARIABLE
from engine.kernels.linear import on_cpu
from engine.observer import LayerRows

Finish = Callable[[], HashedRows]
"""Wait for hashes that were begun, and give them."""


class RowHasher(Protocol):
    """One hash function over the bytes of K/V rows."""

    @property
    def name(self) -> str:
        """What the header calls it."""
        ...

    def begin(self, layers: Sequence[LayerRows], rows: int) -> Finish:
        """Start on every (layer, row) of one forward of `rows` packed rows, all of it computed already."""
        ...

    def hash_rows(self, array: npt.NDArray[Any]) -> list[int]:
        """The same hash of the bytes of `array[i]` for each i, on the host."""
        ...


class HostHasher:
    """XXH3-64 on the host."""

    name = HASH_NAME

    def begin(self, layers: Sequence[LayerRows], rows: int) -> Finish:
        """See RowHasher. All of it happens at the end."""
        return lambda: _begin_groups(layers, rows, _hash_group_on_host)()

    def hash_rows(self, array: npt.NDArray[Any]) -> list[int]:
        """See RowHasher."""
        return hash_rows(array)


class GraphHasher:
    """The multilinear hash on the device that holds the rows; rows in numpy are hashed on the host."""

    name = GRAPH_HASH_NAME

    def begin(self, layers: Sequence[LayerRows], rows: int) -> Finish:
        """See RowHasher. The device works while the caller does something else.

        The rows must be computed already: what is asked of them here is then no reason for the device to compute
        anything of the model's another way.
        """
        return _begin_groups(layers, rows, _begin_group_in_graph)

    def hash_rows(self, array: npt.NDArray[Any]) -> list[int]:
        """See RowHasher."""
        return [int(value) for value in multilinear_hashes(array)]


_Found = tuple[npt.NDArray[np.uint64], npt.NDArray[np.float32]]
_Group = Callable[[], _Found]
"""Wait for the hashes and magnitudes of some arrays of rows, one after another."""


def _begin_groups(layers: Sequence[LayerRows], rows: int, begin: Callable[[Sequence[Any]], _Group]) -> Finish:
    """Begin on arrays of equal shape and type together: one pass costs less than many small ones."""
    sides = [layer.keys for layer in layers] + [layer.values for layer in layers]
    groups: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index, side in enumerate(sides):
        groups[type(side), tuple(side.shape), side.dtype].append(index)
    begun = [(indices, begin([sides[index] for index in indices])) for indices in groups.values()]
    return lambda: _finish(begun, len(layers), rows)


def _begin_group_in_graph(sides: Sequence[Any]) -> _Group:
    if isinstance(sides[0], mx.array) and sides[0].shape[0]:
        graph = MultilinearGraph(mx.concatenate(list(sides), axis=0))
        return lambda: (graph.hashes(), graph.magnitudes())
    together = _on_host(sides)
    return lambda: (multilinear_hashes(together), row_magnitudes(together))


def _hash_group_on_host(sides: Sequence[Any]) -> _Group:
    if isinstance(sides[0], mx.array):
        return lambda: _hash_on_host(_on_host(sides))
    step = max(1, PIECE_BYTES // max(sides[0].nbytes, 1))
    pieces = [sides[start : start + step] for start in range(0, len(sides), step)]
    return lambda: _joined([_hash_on_host(_on_host(piece)) for piece in pieces])


def _hash_on_host(rows: npt.NDArray[Any]) -> _Found:
    return np.array(hash_rows(rows), np.uint64), row_magnitudes(rows)


def _joined(found: Sequence[_Found]) -> _Found:
    hashes, magnitudes = zip(*found, strict=True)
    return np.concatenate(hashes), np.concatenate(magnitudes)


def _on_host(sides: Sequence[Any]) -> npt.NDArray[Any]:
    """All rows in one numpy array. Device arrays are joined there: one look at memory costs less than one an array."""
    if isinstance(sides[0], mx.array):
        return as_numpy(mx.concatenate(list(sides), axis=0))
    return np.concatenate([as_numpy(side) for side in sides])


def _finish(begun: Sequence[tuple[list[int], _Group]], layers: int, rows: int) -> HashedRows:
    hashes = np.zeros((2 * layers, rows), np.uint64)
    magnitudes = np.zeros((2 * layers, rows), np.float32)
    for indices, group in begun:
        found_hashes, found_magnitudes = group()
        hashes[indices] = found_hashes.reshape(len(indices), rows)
        magnitudes[indices] = found_magnitudes.reshape(len(indices), rows)
    key_hash, value_hash = (np.ascontiguousarray(side.T) for side in (hashes[:layers], hashes[layers:]))
    key_magnitude, value_magnitude = (np.ascontiguousarray(s.T) for s in (magnitudes[:layers], magnitudes[layers:]))
    return HashedRows(key_hash, value_hash, key_magnitude, value_magnitude, digest_rows(key_hash, value_hash))


_HASHERS: Mapping[str, Callable[[], RowHasher]] = {HASH_NAME: HostHasher, GRAPH_HASH_NAME: GraphHasher}


def choose_hasher(name: str | None = None) -> RowHasher:
    """The hasher of that name; without one that of the environment variable DIVTRACE_HASH, else what suits the device.

    Raises:
        DivtraceError: there is no such hash.
    """
    wanted = name or os.environ.get(HASH_VARIABLE) or (HASH_NAME if on_cpu() else GRAPH_HASH_NAME)
    if wanted not in _HASHERS:
        raise DivtraceError(f"K/V rows cannot be hashed with {wanted!r}; this version has {' and '.join(_HASHERS)}.")
    return _HASHERS[wanted]()
