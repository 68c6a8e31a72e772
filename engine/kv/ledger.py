"""What is known about every slot: in which layers its row is written, and by whom.

Must not know blocks or requests.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt

Slots = npt.NDArray[np.int64]


class RowLedger:
    """One bit per (layer, slot) and one writer per slot, which means nothing while no bit is set."""

    def __init__(self, slots: int) -> None:
        self._written = np.zeros((0, slots), np.bool_)
        self._writers = np.zeros((slots, 3), np.int64)

    @property
    def layers(self) -> int:
        """Layers seen so far, counted from 0 to the highest."""
        return len(self._written)

    def record(self, slots: Slots, layers: Collection[int], writers: npt.NDArray[np.int64]) -> None:
        """Rows are written in `layers`; `writers` is (len(slots), 3): request number, step, packed row."""
        highest = max(layers, default=-1)
        if highest >= len(self._written):
            more = np.zeros((highest + 1 - len(self._written), self._written.shape[1]), np.bool_)
            self._written = np.concatenate([self._written, more])
        if len(layers) == len(self._written):
            self._written[:, slots] = True
        else:
            self._written[np.array(sorted(layers), np.int64)[:, None], slots] = True
        self._writers[slots] = writers

    def forget(self, slots: Slots | slice) -> None:
        """Nobody wrote these slots any more."""
        self._written[:, slots] = False

    def copy(self, source: Slots, target: Slots) -> None:
        """Rows were copied: their writers stay the ones that computed them."""
        self._written[:, target] = self._written[:, source]
        self._writers[target] = self._writers[source]

    def complete_layers(self, slots: Slots) -> npt.NDArray[np.bool_]:
        """(layers,): True where every one of `slots` is written."""
        return np.asarray(np.take(self._written, slots, axis=1).all(axis=1))

    def first_gap(self, layer: int, slots: Slots) -> int | None:
        """Index in `slots` of the first one that is not written in `layer`."""
        if layer >= len(self._written):
            return 0 if len(slots) else None
        gaps = np.flatnonzero(~self._written[layer, slots])
        return int(gaps[0]) if len(gaps) else None

    def is_blank(self, slots: Slots | slice) -> bool:
        """True when no layer of any of these slots is written."""
        return not self._written[:, slots].any()

    def writers(self, slots: Slots) -> npt.NDArray[np.int64]:
        """(len(slots), 3): request number, step, packed row."""
        return self._writers[slots]
