"""A thousand requests through a pool that is too small for them: everybody ends with a reason, nothing leaks."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import dataclass, field

import numpy as np
import pytest

from engine.engine import Engine
from engine.observer import ObserverNeeds, RunEnding, RunInfo, StepEvent
from engine.request import Arrival, Completion, FinishReason, Request
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model

REQUESTS = 1000
POOL_BLOCKS = 24


def thousand_requests() -> list[Request]:
    """Short prompts of three families; one in fifty can never fit, one in forty is cancelled, arrivals are spread."""
    generator = np.random.default_rng(7)
    stems = [tuple(generator.integers(0, 256, 12).tolist()) for _ in range(3)]
    requests = []
    for index in range(REQUESTS):
        own = tuple(generator.integers(0, 256, int(generator.integers(1, 12))).tolist())
        requests.append(
            Request(
                f"r{index}",
                stems[index % 3] + own,
                200 if index % 50 == 7 else int(generator.integers(1, 10)),
                arrival=Arrival(at_step=index // 6),
                cancel_at_step=index // 6 + 2 if index % 40 == 3 else None,
            )
        )
    return requests


@dataclass
class Watch:
    """Notes the pool's worst moments, and what Python holds at two moments of steady work."""

    preemptions: int = 0
    most_blocks: int = 0
    most_waiting: int = 0
    held_bytes: list[int] = field(default_factory=list)
    finished: int = 0

    @property
    def needs(self) -> ObserverNeeds:
        return ObserverNeeds()

    def run_started(self, info: RunInfo) -> None:
        tracemalloc.start()

    def request_submitted(self, request: Request, step: int) -> None:
        pass

    def step_finished(self, event: StepEvent) -> None:
        self.preemptions += sum(e.kind == "preempted" for e in event.lifecycle)
        self.most_blocks = max(self.most_blocks, event.queue.blocks_used)
        self.most_waiting = max(self.most_waiting, event.queue.waiting)

    def request_finished(self, completion: Completion, step: int) -> None:
        self.finished += 1
        if self.finished in (REQUESTS // 4, REQUESTS * 3 // 4):
            gc.collect()
            self.held_bytes.append(tracemalloc.get_traced_memory()[0])

    def run_finished(self, ending: RunEnding) -> None:
        tracemalloc.stop()


@pytest.mark.parametrize("admission", ["optimistic", "reserve"])
def test_a_thousand_requests_go_through_a_pool_too_small_for_them(admission: str) -> None:
    limits = EngineSettings(
        policy="gemm",
        gemm="f32",
        admission=admission,
        max_active=8,
        token_budget=96,
        kv_blocks=POOL_BLOCKS,
        block_size=4,
        prefix_cache=True,
        audit_every=10,
    )
    watch = Watch()
    requests = thousand_requests()
    loaded = tiny_model(layers=1, hidden_size=32, intermediate_size=32, heads=2, kv_heads=1)
    with Engine(loaded, limits, (watch,)) as engine:
        for request in requests:
            engine.submit(request)
        completions = engine.run()
    assert set(completions) == {request.id for request in requests}
    for request in requests:
        done = completions[request.id]
        match done.finish_reason:
            case FinishReason.LENGTH:
                assert len(done.tokens) == request.max_tokens
            case FinishReason.REFUSED:
                assert f"the pool has {POOL_BLOCKS}" in done.detail
                assert request.max_tokens == 200
            case FinishReason.CANCELLED:
                assert request.cancel_at_step is not None
            case other:
                raise AssertionError(f"{request.id} ended by {other}")
    assert sum(c.finish_reason is FinishReason.REFUSED for c in completions.values()) == 20
    assert watch.most_blocks > POOL_BLOCKS - 4, "the pool was never short"
    assert watch.most_waiting > 8
    assert (watch.preemptions > 0) == (admission == "optimistic")
    assert engine.store.state().blocks_used == 0
    engine.store.check_integrity()
    at_first, at_last = watch.held_bytes
    # The completion of an ended request is kept, and nothing else of it.
    assert at_last - at_first < REQUESTS // 2 * 2048
    assert not engine.states
