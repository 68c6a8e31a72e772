"""What a request's KV memory held at any step: writes and prefix-cache reuses, by (request, position,
step).

A position can be written more than once (a rejected proposal is overwritten, a preempted request is
recomputed); a reader in step s sees the last event at or before s. Rows of the reader's own step count,
because attention reads what the step has just written. Must not know that a second trace exists.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.index import Integers, TraceIndex
from divtrace.errors import TraceError


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Events of one request ordered by (position, step): arrays of shape (events,), int64.

    `records` are rows of table `rows` (another request's where `reused`); `steps` is when this request's
    memory got them.
    """

    positions: Integers
    steps: Integers
    records: Integers
    reused: npt.NDArray[np.bool_]

    def upto(self, length: int) -> MemoryEvents:
        """Only positions below `length`."""
        stop = int(np.searchsorted(self.positions, length))
        return MemoryEvents(self.positions[:stop], self.steps[:stop], self.records[:stop], self.reused[:stop])


@dataclass(frozen=True, slots=True)
class MemoryView:
    """What positions 0 .. length - 1 held for a reader: arrays of shape (length,). Where not `known`,
    nothing had been written.
    """

    records: Integers
    steps: Integers
    reused: npt.NDArray[np.bool_]
    known: npt.NDArray[np.bool_]


class MemoryHistory:
    """All writes and reuses of a trace, sorted once; answers for one request are slices."""

    def __init__(self, index: TraceIndex) -> None:
        self._index = index
        records, requests, positions, steps, reused = _all_events(index)
        # Within one step a reuse comes before the writes, and stable order keeps it so.
        order = np.lexsort((steps, (requests << 32) | positions))
        self._records, self._positions = records[order], positions[order]
        self._steps, self._reused = steps[order], reused[order]
        self._starts = np.searchsorted(requests[order], np.arange(len(index.request_ids) + 1))

    def events(self, request: int) -> MemoryEvents:
        """Every event of one request."""
        mine = slice(int(self._starts[request]), int(self._starts[request + 1]))
        return MemoryEvents(self._positions[mine], self._steps[mine], self._records[mine], self._reused[mine])

    def seen_by(self, request: int, length: int, step: int) -> MemoryView:
        """Memory of `request` below `length` as a reader in `step` sees it."""
        events = self.events(request).upto(length)
        visible = np.flatnonzero(events.steps <= step)
        positions = events.positions[visible]
        last = np.ones(positions.size, bool)
        last[:-1] = positions[1:] != positions[:-1]
        chosen = visible[last]
        places = positions[last]
        view = MemoryView(
            np.zeros(length, np.int64),
            np.zeros(length, np.int64),
            np.zeros(length, bool),
            np.zeros(length, bool),
        )
        view.records[places] = events.records[chosen]
        view.steps[places] = events.steps[chosen]
        view.reused[places] = events.reused[chosen]
        view.known[places] = True
        return view


def _all_events(index: TraceIndex) -> tuple[Integers, Integers, Integers, Integers, npt.NDArray[np.bool_]]:
    readers = index.column("reused", "request")
    writer_steps = index.column("reused", "writer_step")
    offsets = index.step_row_offsets[writer_steps] if writer_steps.size else writer_steps
    writer_records = offsets + index.column("reused", "writer_row")
    rows = index.row_steps.size
    if writer_records.size and int(writer_records.max()) >= rows:
        raise TraceError(f"{index.trace.path}: reused.writer_row names a row that does not exist; the file is damaged.")
    return (
        np.concatenate([writer_records, np.arange(rows, dtype=np.int64)]),
        np.concatenate([readers, index.row_requests]),
        np.concatenate([index.column("reused", "position"), index.row_positions]),
        np.concatenate([index.column("reused", "step"), index.row_steps]),
        np.concatenate([np.ones(readers.size, bool), np.zeros(rows, bool)]),
    )
