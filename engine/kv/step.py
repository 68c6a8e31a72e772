"""Where the rows of one step go and come from: slots built once, used by every layer.

Must not know blocks or arrays.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.kv.arrays import ArrayBackend, BlockRows
from engine.kv.ledger import RowLedger, Slots


@dataclass(frozen=True, slots=True)
class SegmentSlots:
    """Slots of a segment's positions 0 .. end_position - 1, and the layers whose earlier rows are written.

    `index` is `slots` in the backend's form; `complete_layers` is (layers,) bool.
    """

    slots: Slots
    index: Any
    first_position: int
    complete_layers: npt.NDArray[np.bool_]

    def is_readable(self, layer: int) -> bool:
        """True when somebody wrote every row before this step's in `layer`."""
        if layer < len(self.complete_layers):
            return bool(self.complete_layers[layer])
        return self.first_position == 0


@dataclass(slots=True)
class StepSlots:
    """A step under way. `write_slots` are those of the packed rows, in batch order."""

    batch: Batch
    segments: tuple[SegmentSlots, ...]
    write_slots: Slots
    write_index: Any
    written_layers: set[int] = field(default_factory=set)


def map_step(batch: Batch, segment_rows: list[BlockRows], ledger: RowLedger, backend: ArrayBackend) -> StepSlots:
    """Build a step's mapping from where each segment's positions 0 .. end_position - 1 lie."""
    segments, write_slots = [], []
    for segment, rows in zip(batch.segments, segment_rows, strict=True):
        slots = rows.slots
        complete = ledger.complete_layers(slots[: segment.first_position])
        segments.append(SegmentSlots(slots, backend.block_index(rows), segment.first_position, complete))
        write_slots.append(slots[segment.first_position :])
    packed = np.concatenate(write_slots) if write_slots else np.zeros(0, np.int64)
    return StepSlots(batch, tuple(segments), packed, backend.index(packed))
