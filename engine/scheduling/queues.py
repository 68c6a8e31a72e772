"""Who runs and who waits, and the moves between. Shared by every scheduler; decides nothing."""

from __future__ import annotations

from engine.kv.store import KVStore
from engine.observer import LifecycleEvent
from engine.scheduling.plan import StepPlan
from engine.state import Phase, RequestState


class RequestQueues:
    """Running and waiting requests over one K/V store; a request that leaves `running` gives its K/V back."""

    def __init__(self, store: KVStore) -> None:
        self.store = store
        self.waiting: list[RequestState] = []
        self.running: list[RequestState] = []

    def remove(self, state: RequestState, reusable: bool = True) -> None:
        """Forget a request that ended, and free its K/V. `reusable` off: none of it may serve another request."""
        if state in self.running:
            self.running.remove(state)
            self.store.release(state.id, reusable)
        elif state in self.waiting:
            self.waiting.remove(state)
        state.phase = Phase.FINISHED

    def preempt(self, plan: StepPlan, state: RequestState, detail: str) -> None:
        """Take a running request's K/V away and put it first in the queue; it will recompute. `detail` says why."""
        plan.lifecycle.append(LifecycleEvent("preempted", state.id, state.computed_tokens, detail))
        self.store.release(state.id)
        self.running.remove(state)
        state.recompute_until = max(state.recompute_until, state.computed_tokens)
        state.computed_tokens = 0
        state.preemptions += 1
        state.phase = Phase.WAITING
        self.waiting.insert(0, state)
