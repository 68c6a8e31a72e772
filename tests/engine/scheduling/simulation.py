"""A scheduler on a real paged store without a model: tokens are counted, not computed, so thousands of steps are
cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.batch import Batch, SegmentKind
from engine.kv.paged import PagedStore
from engine.request import FinishReason, Request
from engine.sampling.stops import StopRules, StopWatch
from engine.scheduling.continuous import ContinuousScheduler
from engine.scheduling.plan import ScheduledRows, StepPlan
from engine.settings import EngineSettings
from engine.speculative.drafter import Proposal
from engine.state import Phase, RequestState

AcceptedTokens = Callable[[RequestState, int], int]
"""How many of a request's proposals a verification accepts."""


def accept_none(state: RequestState, proposed: int) -> int:
    """Every proposal is wrong."""
    return 0


DraftedTokens = Callable[[RequestState, int], int]
"""How many tokens a drafter proposes for a request that may get so many."""


def draft_all(state: RequestState, most: int) -> int:
    """The drafter always has as many as it may propose."""
    return most


def request_state(request: Request, order: int) -> RequestState:
    """A request as the engine would hold it."""
    return RequestState(request, order, StopWatch(StopRules(), lambda token: bytes([token % 256])))


@dataclass
class Simulation:
    """Drives `ContinuousScheduler` as the engine does; checks the store after every step."""

    settings: EngineSettings
    accepted: AcceptedTokens = accept_none
    drafted: DraftedTokens = draft_all
    store: PagedStore = field(init=False)
    scheduler: ContinuousScheduler = field(init=False)
    states: dict[str, RequestState] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    plans: list[StepPlan] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = PagedStore(
            self.settings.resolved_kv_blocks, self.settings.block_size, prefix_cache=self.settings.prefix_cache
        )
        self.scheduler = ContinuousScheduler(self.settings, self.store)

    def submit(self, request: Request) -> RequestState:
        """Queue a request, or note why it was refused."""
        state = request_state(request, len(self.states))
        self.states[request.id] = state
        reason = self.scheduler.submit(state)
        if reason is not None:
            self.refused[request.id] = reason
        return state

    def step(self) -> Batch | None:
        """Plan, write, commit and decide one step; None when nobody is left."""
        plan = self.scheduler.plan(len(self.batches))
        if plan is None:
            return None
        for item in plan.scheduled:
            item.proposal = Proposal(tuple(range(self.drafted(item.state, item.max_proposal))))
        self.scheduler.fill_up(plan, len(self.batches))
        self.scheduler.make_room_for_proposals(plan)
        batch = plan.to_batch(len(self.batches), self.settings.speculation.bonus)
        self.store.begin_step(batch)
        rows = np.zeros((batch.packed_rows, 1, 1), np.float32)
        self.store.write(0, rows, rows)
        self.store.commit_step(batch)
        for item, segment in zip(plan.scheduled, batch.segments, strict=True):
            item.state.computed_tokens = segment.end_position
            if segment.wanted_logits:
                self._decide(item, segment.wanted_logits)
        self.plans.append(plan)
        self.batches.append(batch)
        self.store.check_integrity()
        assert all(state.computed_tokens == 0 for state in self.scheduler.waiting), "who waits holds no K/V"
        return batch

    def run(self, requests: Sequence[Request], most_steps: int = 5000) -> None:
        """Submit all, then step until nobody is left."""
        for request in requests:
            self.submit(request)
        while self.step() is not None:
            assert len(self.batches) < most_steps, "the schedule makes no progress"

    def _decide(self, item: ScheduledRows, wanted_logits: int) -> None:
        state = item.state
        tokens = min(self.accepted(state, len(item.proposal.tokens)) + 1, wanted_logits, state.remaining_output)
        state.output.extend([7] * tokens)
        if state.computed_tokens > state.known_tokens - 1:
            state.computed_tokens = state.known_tokens - 1
            self.store.truncate(state.id, state.computed_tokens)
        if state.remaining_output == 0:
            state.finish_reason = FinishReason.LENGTH
            self.scheduler.remove(state)

    @property
    def finished(self) -> list[str]:
        """Requests that produced all of their tokens."""
        return [name for name, state in self.states.items() if state.finish_reason is FinishReason.LENGTH]

    def steps_of(self, request_id: str, kind: SegmentKind | None = None) -> list[int]:
        """Steps in which a request had rows (of a kind)."""
        return [
            batch.step
            for batch in self.batches
            for segment in batch.segments
            if segment.request_id == request_id and kind in (None, segment.kind)
        ]

    def rows_of(self, request_id: str) -> list[int]:
        """Packed rows of a request, step by step."""
        return [s.rows for batch in self.batches for s in batch.segments if s.request_id == request_id]

    def events(self, kind: str) -> list[tuple[int, str]]:
        """(step, request) of lifecycle events of a kind."""
        return [
            (step, event.request_id)
            for step, plan in enumerate(self.plans)
            for event in plan.lifecycle
            if event.kind == kind
        ]

    @property
    def leaked_blocks(self) -> int:
        """Blocks that somebody owns although nobody runs."""
        assert all(state.phase is Phase.FINISHED or state.id in self.refused for state in self.states.values())
        return self.store.state().blocks_used
