"""Faults of what rows are computed from, and of who watches: tokens, positions, logits, preemption, recording."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from unittest.mock import patch

import numpy as np

from engine.batch import Batch, Segment, SegmentKind
from engine.engine import Engine
from engine.kernels.attention import ATTENTION_KERNELS
from engine.kv.store import KVStore
from engine.model.packed import ForwardResult
from engine.observer import LifecycleEvent
from engine.scheduling.plan import StepPlan
from tests.faults.build import Fault, Forward, Struck, segment_of
from tests.faults.kernels import split_attention


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
        engine.scheduler.preempt(StepPlan(), state, "planted")  # type: ignore[attr-defined]
        return plan
