"""Steps whose K/V rows are known already: a playback stores them instead of computing them.

That is how a playback starts in the middle of a run: everything else (admission, blocks, provenance, preemption) goes
its usual way, so the step after the last known one finds the memory that the run itself had, bit for bit. Must not
know where the rows were kept, or whether they are the run's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.batch import Batch
from engine.errors import PlaybackError
from engine.kv.store import KVStore
from engine.model.packed import ForwardResult
from engine.observer import LayerRows


@dataclass(frozen=True, slots=True)
class KnownStep:
    """K and V of all packed rows of one step, a `LayerRows` per layer, rows in batch order."""

    kv_rows: Sequence[LayerRows]

    def store(self, batch: Batch, store: KVStore, vocabulary_size: int) -> ForwardResult:
        """Write the rows where `batch` has them, in place of a forward.

        The logits of the result are zeros, float32 (head_rows, vocabulary): nothing was computed, and the tokens of a
        known step are forced.

        Raises:
            PlaybackError: the rows are not those of such a batch; names the step.
        """
        for rows in self.kv_rows:
            if rows.keys.shape[0] != batch.packed_rows:
                raise PlaybackError(
                    f"step {batch.step}: {rows.keys.shape[0]} K/V rows are known, the batch has {batch.packed_rows}; "
                    "the runs have parted before."
                )
        store.begin_step(batch)
        for layer, rows in enumerate(self.kv_rows):
            store.write(layer, rows.keys, rows.values)
        return ForwardResult(np.zeros((batch.head_rows, vocabulary_size), np.float32), (), None)
