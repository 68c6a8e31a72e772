"""Who runs and who waits, and the moves between. Shared by every scheduler; decides nothing."""

from __future__ import annotations

from engine.kv.store import Admission, KVStore
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

    def sampled_request(self, state: RequestState) -> RequestState | None:
        """The running request whose prompt `state` samples; None when there is none, or its prompt is another."""
        wanted = state.request.sample_of
        found = next((s for s in self.running if s.id == wanted), None) if wanted is not None else None
        return found if found is not None and found.request.prompt == state.request.prompt else None

    def rows_of_sampled(self, state: RequestState) -> int:
        """K/V rows of its prompt that `state` could take over now; one token is left to compute."""
        parent = self.sampled_request(state)
        if parent is None:
            return 0
        return min(parent.computed_tokens, len(state.request.prompt), state.known_tokens - 1)

    def open(self, state: RequestState, cached_tokens: int) -> Admission:
        """Open K/V for a waiting request on rows that exist: the prefix cache's, or where it has fewer than
        `cached_tokens` those of the request that it samples.
        """
        parent = self.sampled_request(state)
        if parent is None or cached_tokens <= self.store.cached_prefix_length(state.tokens):
            return self.store.admit(state.id, state.tokens)
        forked = self.store.fork(parent.id, state.id)
        self.store.truncate(state.id, cached_tokens)
        return Admission(cached_tokens, forked.reused[:cached_tokens])

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
