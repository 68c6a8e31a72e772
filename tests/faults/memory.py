"""Faults of K/V memory: rows and blocks that hold something else than was written for their place."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from engine.batch import Batch, Segment
from engine.engine import Engine
from engine.kv.paged import PagedStore
from engine.kv.store import KVStore
from engine.model.packed import ForwardResult
from tests.faults.build import Fault, Forward, Struck, segment_of


def _slots(store: KVStore, batch: Batch, request: str) -> np.ndarray | None:
    """Slots of a request's positions in the step under way."""
    assert isinstance(store, PagedStore)
    for index, segment in enumerate(batch.segments):
        if segment.request_id == request:
            return store.slots(index)
    return None


@dataclass
class _Memory(Fault):
    """Damages memory behind the forward of the step in which `request` has computed `after` positions."""

    request: str
    after: int
    is_done: bool = field(default=False, init=False)

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        result = honest(batch, store, capture_kv=capture_kv)
        segment = segment_of(batch, self.request)
        if not self.is_done and segment is not None and segment.end_position >= self.after:
            self.is_done = self.damage(engine, batch, store, segment)
        return result

    def damage(self, engine: Engine, batch: Batch, store: KVStore, segment: Segment) -> bool:
        raise NotImplementedError


@dataclass
class ChangedRow(_Memory):
    """One element of one layer's K or V row is changed after it was written."""

    position: int
    layer: int
    by: float = 0.5
    in_values: bool = False

    def damage(self, engine: Engine, batch: Batch, store: KVStore, segment: Segment) -> bool:
        slots = _slots(store, batch, self.request)
        assert slots is not None
        assert isinstance(store, PagedStore)
        store.pool(self.layer)[int(self.in_values)][slots[self.position], 0, 0] += np.float32(self.by)
        self.struck.append(Struck(batch.step + 1, self.request, segment.end_position))
        return True


@dataclass
class StaleBlock(_Memory):
    """A whole block of the request holds what another request's block holds: a write that came too late."""

    block: int
    donor: str

    def damage(self, engine: Engine, batch: Batch, store: KVStore, segment: Segment) -> bool:
        own, other = _slots(store, batch, self.request), _slots(store, batch, self.donor)
        if own is None or other is None:
            return False
        assert isinstance(store, PagedStore)
        size = engine.settings.block_size
        span = slice(self.block * size, (self.block + 1) * size)
        if own[span].size < size or other[span].size < size:
            return False
        for layer in range(engine.packed.layers):
            for array in store.pool(layer):
                array[own[span]] = array[other[span]]
        self.struck.append(Struck(batch.step + 1, self.request, segment.end_position))
        return True


@dataclass
class SwappedRows(_Memory):
    """The rows of two requests change places at some positions, as after a compaction that mixes two slots up."""

    other: str
    positions: tuple[int, ...]

    def damage(self, engine: Engine, batch: Batch, store: KVStore, segment: Segment) -> bool:
        own, others = _slots(store, batch, self.request), _slots(store, batch, self.other)
        if own is None or others is None or others.size <= max(self.positions):
            return False
        assert isinstance(store, PagedStore)
        places = list(self.positions)
        for layer in range(engine.packed.layers):
            for array in store.pool(layer):
                mine = array[own[places]].copy()
                array[own[places]] = array[others[places]]
                array[others[places]] = mine
        self.struck.append(Struck(batch.step + 1, self.request, segment.end_position))
        other = segment_of(batch, self.other)
        assert other is not None
        self.struck.append(Struck(batch.step + 1, self.other, other.end_position))
        return True


@dataclass
class WrongPrefixBlock(Fault):
    """The prefix cache gives the block of another prompt for the last block of a hit, as on a key collision."""

    request: str
    donor: str

    def built(self, engine: Engine) -> None:
        store = engine.store
        assert isinstance(store, PagedStore)
        tables = store._tables
        honest = tables.cached_prefix

        def cached(tokens: tuple[int, ...]) -> list[int]:
            found = honest(tokens)
            state = engine.states.get(self.request)
            if state is None or tuple(tokens) != state.tokens or len(found) < 1:
                return found
            donor = tables.sequence(self.donor)
            return [*found[:-1], donor.table[len(found) - 1]]

        tables.cached_prefix = cached  # type: ignore[method-assign, assignment]

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        segment = segment_of(batch, self.request)
        if segment is not None and segment.cached_tokens:
            size = engine.settings.block_size
            self.struck.append(Struck(batch.step, self.request, segment.cached_tokens - size))
        return honest(batch, store, capture_kv=capture_kv)
