"""A build of the engine with a fault in it: the engine's objects, wrapped from outside. The engine knows nothing of it.

A fault that belongs to a build is there whenever that build runs, in a replay too; one that strikes once (a bit that
changes, a write that comes late) is there in the run that was recorded, and a replay runs on the plain engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from divtrace import recording
from divtrace.replay import replay
from engine.batch import Batch, Segment
from engine.decide import Decision
from engine.engine import Engine
from engine.kv.store import KVStore
from engine.model.packed import ForwardResult
from engine.scheduling.plan import StepPlan

Forward = Callable[..., ForwardResult]


@dataclass(frozen=True, slots=True)
class Struck:
    """Where a fault changed what was computed or committed."""

    step: int
    request: str
    position: int


@dataclass
class Fault:
    """Does nothing; a fault overrides what it needs. `struck` lists in order where it changed something."""

    struck: list[Struck] = field(default_factory=list, kw_only=True)

    def built(self, engine: Engine) -> None:
        """The engine is made, no request is submitted."""

    def planned(self, engine: Engine, plan: StepPlan) -> StepPlan:
        """A step is planned."""
        return plan

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        """Run the step's forward."""
        return honest(batch, store, capture_kv=capture_kv)

    def decide(self, engine: Engine, batch: Batch, decisions: Callable[[], list[Decision]]) -> list[Decision]:
        """Decide the step's tokens."""
        return decisions()

    def note(self, batch: Batch, segment: Segment) -> None:
        """The fault struck in this segment."""
        self.struck.append(Struck(batch.step, segment.request_id, segment.first_position))


class FaultyEngine(Engine):
    """An engine with one fault."""

    fault: Fault

    def __init__(self, fault: Fault, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.fault = fault
        honest, plan = self.packed.forward, self.scheduler.plan

        def forward(batch: Batch, store: KVStore, capture_kv: bool = False) -> ForwardResult:
            return fault.forward(self, batch, honest, store, capture_kv)

        def planned(step: int) -> StepPlan | None:
            made = plan(step)
            return None if made is None else fault.planned(self, made)

        self.packed.forward = forward  # type: ignore[method-assign]
        self.scheduler.plan = planned  # type: ignore[method-assign]
        fault.built(self)

    def _decide(self, batch: Batch, plan: StepPlan, result: ForwardResult) -> list[Decision]:
        return self.fault.decide(self, batch, lambda: super(FaultyEngine, self)._decide(batch, plan, result))


def segment_of(batch: Batch, request: str) -> Segment | None:
    """The segment of a request, None where it has none."""
    return next((s for s in batch.segments if s.request_id == request), None)


@contextmanager
def installed(make: Callable[[], Fault] | None) -> Iterator[None]:
    """Let every engine that records or replays be of the faulty build. The one place that patches names."""
    if make is None:
        yield
        return

    def build(*arguments: Any, **options: Any) -> Engine:
        return FaultyEngine(make(), *arguments, **options)

    with patch.object(recording, "Engine", build), patch.object(replay, "Engine", build):
        yield


def several(faults: Sequence[Fault]) -> Fault:
    """Many faults as one; each sees what the ones before it left."""
    return _Several(list(faults))


@dataclass
class _Several(Fault):
    faults: list[Fault]

    def built(self, engine: Engine) -> None:
        for fault in self.faults:
            fault.built(engine)

    def planned(self, engine: Engine, plan: StepPlan) -> StepPlan:
        for fault in self.faults:
            plan = fault.planned(engine, plan)
        return plan

    def forward(self, engine: Engine, batch: Batch, honest: Forward, store: KVStore, capture_kv: bool) -> ForwardResult:
        run = honest
        for fault in self.faults:
            run = _nested(fault, engine, run)
        result = run(batch, store, capture_kv=capture_kv)
        self.struck[:] = sorted((s for f in self.faults for s in f.struck), key=lambda s: s.step)
        return result

    def decide(self, engine: Engine, batch: Batch, decisions: Callable[[], list[Decision]]) -> list[Decision]:
        run = decisions
        for fault in self.faults:
            run = _nested_decide(fault, engine, batch, run)
        return run()


def _nested(fault: Fault, engine: Engine, inner: Forward) -> Forward:
    def run(batch: Batch, store: KVStore, capture_kv: bool = False) -> ForwardResult:
        return fault.forward(engine, batch, inner, store, capture_kv)

    return run


def _nested_decide(
    fault: Fault, engine: Engine, batch: Batch, inner: Callable[[], list[Decision]]
) -> Callable[[], list[Decision]]:
    return lambda: fault.decide(engine, batch, inner)
