"""Holds the K/V rows that a request reads against their hashes at writing. Must not know files or stores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from divtrace.recorder.hashers import RowHasher
from divtrace.recorder.hashing import HashedRows, as_numpy
from engine.observer import MemoryRead, StepEvent

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """A K or V row in memory whose bytes are not what was written there; hashes are of the tensor that changed.

    `kind` is `changed`, or `never_written` where nobody is known to have written that position (expected hash 0).
    """

    request_id: str
    position: int
    layer: int
    kind: str
    expected_hash: int
    found_hash: int


@dataclass(slots=True)
class MemoryAudit:
    """Knows by (step, packed row) what was written, and by request and position which write lies in memory.

    `hasher` hashed the rows at writing. `note` every step after `check`; keeps 16 bytes per layer and row of the run. A
    change is reported once.
    """

    hasher: RowHasher
    _written: list[HashedRows] = field(default_factory=list)
    _places: dict[str, dict[int, tuple[int, int]]] = field(default_factory=dict)
    _reported: set[ChangedRow] = field(default_factory=set)

    def take_reused(self, event: StepEvent) -> None:
        """Rows that a request took over hold what their writers wrote. Call before `check`."""
        for row in event.reused:
            places = self._places.setdefault(row.request_id, {})
            places[row.position] = (row.writer_step, row.writer_row)

    def check(self, event: StepEvent) -> list[ChangedRow]:
        """Rows of `event.memory` that hold other bytes than were written, each one the first time only."""
        found = [changed for read in event.memory for changed in self._changed(read)]
        new = [changed for changed in found if changed not in self._reported]
        self._reported.update(new)
        return new

    def note(self, event: StepEvent, hashed: HashedRows) -> None:
        """The step's own rows lie in memory from now on."""
        self._written.append(hashed)
        for segment in event.batch.segments:
            places = self._places.setdefault(segment.request_id, {})
            for index in range(segment.rows):
                places[segment.first_position + index] = (event.batch.step, segment.first_row + index)

    def _changed(self, read: MemoryRead) -> Iterator[ChangedRow]:
        places = self._places.get(read.request_id, {})
        for layer, rows in enumerate(read.layers):
            keys, values = (self.hasher.hash_rows(as_numpy(side)) for side in (rows.keys, rows.values))
            for position in range(len(keys)):
                place = places.get(position)
                if place is None:
                    yield ChangedRow(read.request_id, position, layer, "never_written", 0, keys[position])
                    continue
                step, row = place
                written = self._written[step]
                expected = int(written.key_hash[row, layer]), int(written.value_hash[row, layer])
                for at_writing, now in zip(expected, (keys[position], values[position]), strict=True):
                    if at_writing != now:
                        yield ChangedRow(read.request_id, position, layer, "changed", at_writing, now)
                        break
