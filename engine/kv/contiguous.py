"""The control: each request's K/V in arrays of its own that grow. Nothing is shared, nothing is paged.

Owns the arrays per request and layer. Must not know blocks or prefixes. A run on this store and a run on the
paged one read the same rows in the same layout, so a difference between them is a fault of paging.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.batch import Batch, Segment
from engine.errors import EngineError
from engine.kv.arrays import ArrayBackend, RowArray, default_backend
from engine.kv.faults import already_admitted, never_written, no_room, not_admitted, not_next_position
from engine.kv.names import RequestNumbers, reused_rows
from engine.kv.store import Admission, StoreState

FIRST_CAPACITY = 64
"""Rows that a request's arrays hold at first; they double from there."""


@dataclass(slots=True)
class _LayerRows:
    keys: RowArray
    values: RowArray
    capacity: int
    written: int = 0


@dataclass(slots=True)
class _Request:
    id: str
    number: int
    length: int = 0
    room: int = 0
    layers: dict[int, _LayerRows] = field(default_factory=dict)
    writers: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 3), np.int64))


class ContiguousStore:
    """K/V memory without paging, behind the `KVStore` protocol.

    `token_capacity` bounds the rows of all requests together (None: no bound); `backend` says where rows lie.
    """

    def __init__(self, token_capacity: int | None = None, backend: ArrayBackend | None = None) -> None:
        self._backend = backend or default_backend()
        self._token_capacity = token_capacity
        self._numbers = RequestNumbers()
        self._requests: dict[str, _Request] = {}
        self._segments: tuple[tuple[_Request, Segment], ...] = ()

    def admit(self, request_id: str, tokens: Sequence[int]) -> Admission:  # noqa: ARG002 (nothing is cached)
        """Open a request; nothing is ever cached here."""
        if request_id in self._requests:
            raise already_admitted(request_id)
        self._requests[request_id] = _Request(request_id, self._numbers.number_of(request_id))
        return Admission(cached_tokens=0)

    def grow(self, request_id: str, length: int) -> bool:
        """Make room for positions below `length`; False when that would pass the token capacity."""
        request = self._open(request_id)
        missing = max(0, length - request.room)
        if self._token_capacity is not None and self._room_of_all() + missing > self._token_capacity:
            return False
        request.room += missing
        return True

    def can_grow(self, lengths: Mapping[str, int]) -> bool:
        """True when all of these requests could grow to their lengths together; changes nothing."""
        missing = sum(max(0, length - self._open(name).room) for name, length in lengths.items())
        return self._token_capacity is None or self._room_of_all() + missing <= self._token_capacity

    def can_admit(self, tokens: Sequence[int], length: int) -> bool:  # noqa: ARG002 (nothing is cached)
        """True when a request of `length` rows would fit now; changes nothing."""
        return self._token_capacity is None or self._room_of_all() + length <= self._token_capacity

    def begin_step(self, batch: Batch) -> None:
        """Check that every segment continues its request and has room."""
        segments = tuple((self._open(segment.request_id), segment) for segment in batch.segments)
        for request, segment in segments:
            if segment.first_position != request.length:
                raise not_next_position(request.id, request.length, batch.step, segment.first_position)
            if segment.end_position > request.room:
                raise no_room(request.id, request.room, batch.step, segment.end_position)
        self._segments = segments

    def write(self, layer: int, keys: Any, values: Any) -> None:
        """Store K and V of all packed rows, (packed_rows, kv_heads, head_size) each."""
        for request, segment in self._segments:
            packed = slice(segment.first_row, segment.first_row + segment.rows)
            self._write_rows(request, layer, segment.first_position, keys[packed], values[packed])

    def read(self, layer: int, segment_index: int) -> tuple[Any, Any]:
        """K and V of the segment's request: two mx.arrays (1, kv_heads, end_position, head_size)."""
        request, segment = self._segments[segment_index]
        rows = request.layers.get(layer)
        written = rows.written if rows else 0
        if rows is None or written < segment.end_position:
            raise never_written(request.id, layer, written)
        span = slice(0, segment.end_position)
        return rows.keys.read(span), rows.values.read(span)

    def commit_step(self, batch: Batch) -> None:
        """Note who wrote the step's rows."""
        for request, segment in self._segments:
            packed = np.arange(segment.first_row, segment.first_row + segment.rows, dtype=np.int64)
            fixed = np.broadcast_to(np.array([request.number, batch.step], np.int64), (segment.rows, 2))
            request.writers = np.concatenate([request.writers, np.column_stack([fixed, packed])])
            request.length = segment.end_position
            for rows in request.layers.values():
                rows.keys.settle()
                rows.values.settle()
        self._segments = ()

    def truncate(self, request_id: str, length: int) -> None:
        """Drop rows at positions >= `length`, and the room made for them."""
        request = self._open(request_id)
        request.length = min(request.length, length)
        request.room = min(request.room, length)
        request.writers = request.writers[: request.length]
        for rows in request.layers.values():
            rows.written = min(rows.written, length)

    def fork(self, parent_id: str, child_id: str) -> Admission:
        """Open `child_id` with a copy of every row that `parent_id` has computed; its writers stay."""
        parent = self._open(parent_id)
        self.admit(child_id, ())
        child = self._requests[child_id]
        child.length = child.room = parent.length
        child.writers = parent.writers.copy()
        for layer, rows in parent.layers.items():
            written = min(rows.written, parent.length)
            child.layers[layer] = _LayerRows(rows.keys.clone(), rows.values.clone(), rows.capacity, written)
        return Admission(child.length, reused_rows(child_id, child.writers, self._numbers.names))

    def release(self, request_id: str, reusable: bool = True) -> None:  # noqa: ARG002 (nothing is cached)
        """Close a request and free its arrays."""
        self._open(request_id)
        del self._requests[request_id]

    def writers(self, request_id: str) -> npt.NDArray[np.int64]:
        """Who wrote each row: (length, 3) of request number, step, packed row."""
        return self._open(request_id).writers.copy()

    def request_names(self) -> Sequence[str]:
        """Request ids by number."""
        return self._numbers.names

    def audit_read(
        self, layer: int, request_id: str
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Copies of what lies in memory: keys, values (length, kv_heads, head_size), writers (length, 3)."""
        request = self._open(request_id)
        rows = request.layers.get(layer)
        if rows is None or rows.written < request.length:
            raise never_written(request_id, layer, rows.written if rows else 0)
        span = slice(0, request.length)
        return rows.keys.bits(span), rows.values.bits(span), request.writers.copy()

    def state(self) -> StoreState:
        """Zeros: there are no blocks."""
        return StoreState(blocks_used=0, blocks_cached=0, blocks_total=0)

    def cached_prefix_length(self, tokens: Sequence[int]) -> int:  # noqa: ARG002 (nothing is cached)
        """Always 0."""
        return 0

    def pending_prefix(self, tokens: Sequence[int]) -> bool:  # noqa: ARG002 (nothing is shared)
        """Always False."""
        return False

    def check_integrity(self) -> None:
        """Raise AssertionError when a request's rows, room and writers disagree."""
        for request in self._requests.values():
            assert request.length <= request.room, f"request {request.id!r} has more rows than room"
            assert len(request.writers) == request.length, f"request {request.id!r} has rows that nobody wrote"
            for layer, rows in request.layers.items():
                assert rows.written <= rows.capacity, f"request {request.id!r}, layer {layer} overran its arrays"
        if self._token_capacity is not None:
            assert self._room_of_all() <= self._token_capacity, "requests hold more rows than the token capacity"

    def _open(self, request_id: str) -> _Request:
        request = self._requests.get(request_id)
        if request is None:
            raise not_admitted(request_id)
        return request

    def _room_of_all(self) -> int:
        return sum(request.room for request in self._requests.values())

    def _write_rows(self, request: _Request, layer: int, first: int, keys: Any, values: Any) -> None:
        end = first + keys.shape[0]
        rows = request.layers.get(layer)
        if rows is None:
            capacity = max(FIRST_CAPACITY, end)
            allocate = self._backend.allocate
            rows = _LayerRows(allocate(capacity, keys), allocate(capacity, values), capacity)
            request.layers[layer] = rows
        if first > rows.written:
            raise EngineError(
                f"request {request.id!r}, layer {layer}: position {first} is written, "
                f"but position {rows.written} never was."
            )
        if end > rows.capacity:
            rows.capacity = max(end, 2 * rows.capacity)
            rows.keys.resize(rows.capacity)
            rows.values.resize(rows.capacity)
        rows.keys.write(slice(first, end), keys)
        rows.values.write(slice(first, end), values)
        rows.written = end
