"""Faults of K/V memory and of what rows are computed from."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np

from engine.batch import Batch, Segment, SegmentKind
from engine.engine import Engine
from engine.kernels.attention import ATTENTION_KERNELS
from engine.kv.paged import PagedStore
from engine.kv.store import KVStore
from engine.model.packed import ForwardResult
from engine.observer import LifecycleEvent
from engine.scheduling.plan import StepPlan
from tests.faults.build import Fault, Forward, Struck, segment_of
from tests.faults.kernels import split_attention


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
            state = engine.states[self.request]
            if tuple(tokens) != state.tokens or len(found) < 1:
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


class _LossyPlan(StepPlan):
    """A plan whose recomputed segments lack one token: the ones behind it move up, the last one is fed twice."""

    lost: int = 0
    fault: Fault

    def to_batch(self, step: int, bonus: bool) -> Batch:
        batch = StepPlan.to_batch(self, step, bonus)
        return replace(batch, segments=tuple(self._lossy(batch, segment) for segment in batch.segments))

    def _lossy(self, batch: Batch, segment: Segment) -> Segment:
        at = self.lost - segment.first_position
        if segment.kind is not SegmentKind.RECOMPUTE or not 0 <= at < segment.rows - 1:
            return segment
        tokens = (*segment.tokens[:at], *segment.tokens[at + 1 :], segment.tokens[-1])
        if tokens != segment.tokens:
            self.fault.struck.append(Struck(batch.step, segment.request_id, self.lost))
        return replace(segment, tokens=tokens)


@dataclass
class LostToken(Fault):
    """A recompute after preemption feeds the request's tokens without the one at `position`."""

    position: int

    def planned(self, engine: Engine, plan: StepPlan) -> StepPlan:
        lossy = _LossyPlan(plan.scheduled, plan.lifecycle, plan.reused, plan.cached_now)
        lossy.lost, lossy.fault = self.position, self
        return lossy


@dataclass
class RopeOffByOne(Fault):
    """The rows of a request are rotated one position too far in the step after a rejected proposal."""

    request: str
    times: int = 1
    rejected: bool = field(default=False, init=False)

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        segment = segment_of(batch, self.request)
        if self.rejected and segment is not None and self.times:
            self.times -= 1
            self.note(batch, segment)
            positions = batch.positions.copy()
            positions[segment.first_row : segment.first_row + segment.rows] += 1
            batch = Batch(batch.step, batch.segments)
            batch.__dict__["positions"] = positions
        return honest(batch, store, capture_kv=capture_kv)

    def decide(self, engine, batch, decisions):  # type: ignore[no-untyped-def]
        made = decisions()
        mine = next((d for d in made if d.request_id == self.request), None)
        draft = mine.draft if mine is not None else None
        self.rejected = draft is not None and draft.accepted_tokens < len(draft.proposed)
        return made


@dataclass
class InfiniteLogit(Fault):
    """One logit of the decision at `position` is infinite."""

    request: str
    position: int
    token: int

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        result = honest(batch, store, capture_kv=capture_kv)
        row = 0
        for segment in batch.segments:
            first = segment.end_position - segment.wanted_logits + 1
            if segment.request_id == self.request and first <= self.position < first + segment.wanted_logits:
                result.logits[row + self.position - first, self.token] = np.inf
                self.struck.append(Struck(batch.step, self.request, self.position))
            row += segment.wanted_logits
        return result


@dataclass
class RecordingChanges(Fault):
    """Attention takes another kernel where somebody wants K/V rows; the plan calls it by the same name."""

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        if not capture_kv:
            return honest(batch, store, capture_kv=capture_kv)
        for segment in batch.segments:
            self.note(batch, segment)
        with patch.dict(ATTENTION_KERNELS, dict.fromkeys(ATTENTION_KERNELS, split_attention)):
            return honest(batch, store, capture_kv=capture_kv)


@dataclass
class Preempt(Fault):
    """Not a fault: preempts a running request once it has computed `after` positions, as a short pool would."""

    request: str
    after: int
    is_done: bool = field(default=False, init=False)

    def planned(self, engine: Engine, plan: StepPlan) -> StepPlan:
        state = engine.states.get(self.request)
        mine = next((item for item in plan.scheduled if item.state is state), None)
        if (
            self.is_done
            or state is None
            or mine is None
            or state.computed_tokens < self.after
            or len(plan.scheduled) < 2
        ):
            return plan
        self.is_done = True
        plan.scheduled.remove(mine)
        plan.lifecycle.append(LifecycleEvent("preempted", state.id, state.computed_tokens, "asked for by a test"))
        engine.scheduler._preempt(StepPlan(), state)  # type: ignore[attr-defined]
        return plan
