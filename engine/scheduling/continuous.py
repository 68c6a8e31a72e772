"""Iteration-level scheduling: decodes first, then unfinished prefills, then admissions, within one token budget.

Source of the idea: Orca (Yu et al., OSDI 2022); the mixed batch with decode first is vLLM V1's and mini-vllm-rs's.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.kv.store import KVStore
from engine.observer import LifecycleEvent
from engine.scheduling.admission import may_start, reason_it_can_never_run
from engine.scheduling.ordering import ordered, preemption_victim
from engine.scheduling.plan import ScheduledRows, StepPlan
from engine.settings import BudgetUnit, DrafterKind, EngineSettings
from engine.state import Phase, RequestState


class ContinuousScheduler:
    """Owns the waiting and running lists; the engine moves states between phases only through it."""

    def __init__(self, settings: EngineSettings, store: KVStore) -> None:
        self.settings = settings
        self.store = store
        self.waiting: list[RequestState] = []
        self.running: list[RequestState] = []
        self._admissions = 0

    def submit(self, state: RequestState) -> str | None:
        """Queue a request; returns the reason when it can never run (and does not queue it)."""
        reason = reason_it_can_never_run(state, self.settings)
        if reason is None:
            state.phase = Phase.WAITING
            self.waiting.append(state)
        return reason

    def remove(self, state: RequestState) -> None:
        """Forget a request that ended, and free its K/V."""
        if state in self.running:
            self.running.remove(state)
            self.store.release(state.id)
        elif state in self.waiting:
            self.waiting.remove(state)
        state.phase = Phase.FINISHED

    def plan(self, step: int) -> StepPlan | None:
        """Rows for this step, None when nothing can run."""
        plan = StepPlan()
        budget = self.settings.token_budget
        for state in [s for s in self.running if s.is_decoding]:
            budget -= self._schedule_decode(plan, state, budget)
        for state in self._in_order([s for s in self.running if not s.is_decoding]):
            budget -= self._schedule_prefill(plan, state, budget)
        if not any(event.kind == "preempted" for event in plan.lifecycle):
            self._admit(plan, budget)
        for item in plan.scheduled:
            item.state.last_scheduled_step = step
        return plan if plan.scheduled or plan.lifecycle else None

    def _in_order(self, states: Sequence[RequestState]) -> list[RequestState]:
        return ordered(states, self.settings.scheduling, lambda s: self.store.cached_prefix_length(s.tokens))

    def _schedule_decode(self, plan: StepPlan, state: RequestState, budget: int) -> int:
        if budget < 1 or state.phase is not Phase.RUNNING:
            return 0
        proposal = self._proposal_room(state)
        if self.settings.budget_unit is BudgetUnit.ROWS:
            proposal = min(proposal, budget - 1)
        if not self._make_room(plan, state, state.known_tokens + proposal):
            return 0
        plan.scheduled.append(ScheduledRows(state, 1, proposal))
        return 1 if self.settings.budget_unit is BudgetUnit.WORK else 1 + proposal

    def _proposal_room(self, state: RequestState) -> int:
        speculation = self.settings.speculation
        if speculation.drafter is DrafterKind.NONE:
            return 0
        # With the bonus token K proposals can commit K + 1 tokens; never more than may still be produced.
        room = state.remaining_output - (1 if speculation.bonus else 0)
        return max(0, min(speculation.tokens, room))

    def _schedule_prefill(self, plan: StepPlan, state: RequestState, budget: int) -> int:
        rows = self._prefill_rows(state, budget)
        if rows < 1 or state.phase is not Phase.RUNNING:
            return 0
        if not self._make_room(plan, state, state.computed_tokens + rows):
            return 0
        plan.scheduled.append(ScheduledRows(state, rows))
        return rows

    def _prefill_rows(self, state: RequestState, budget: int) -> int:
        settings = self.settings
        rows = state.uncomputed_tokens
        if not settings.chunked_prefill:
            return rows if rows <= budget else 0
        if settings.align_prefill_to_blocks:
            # Stop where a prefix hit would start, so that the rest has the same row count cold and warm.
            edge = (state.known_tokens - 1) // settings.block_size * settings.block_size
            if state.computed_tokens < edge:
                rows = edge - state.computed_tokens
        if settings.long_prefill_threshold:
            rows = min(rows, settings.long_prefill_threshold)
        return min(rows, budget)

    def _make_room(self, plan: StepPlan, state: RequestState, length: int) -> bool:
        """Grow a running request's K/V, preempting others (or itself) where memory is short."""
        while not self.store.grow(state.id, length):
            victim = preemption_victim(self.running, self.settings.scheduling)
            self._preempt(plan, victim)
            if victim is state:
                return False
        return True

    def _preempt(self, plan: StepPlan, victim: RequestState) -> None:
        plan.scheduled = [item for item in plan.scheduled if item.state is not victim]
        plan.lifecycle.append(
            LifecycleEvent("preempted", victim.id, victim.computed_tokens, "KV blocks ran out; will recompute")
        )
        self.store.release(victim.id)
        self.running.remove(victim)
        victim.computed_tokens = 0
        victim.preemptions += 1
        victim.phase = Phase.WAITING
        self.waiting.insert(0, victim)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        group_is_open = not self.running
        for state in self._in_order(self.waiting):
            if budget < 1 or not may_start(state, self.running, group_is_open, self.settings):
                return
            if self.settings.prefix_cache and self.store.pending_prefix(state.tokens):
                continue  # single flight: somebody is computing a block that this prompt will share
            admitted = self._start(plan, state, budget)
            if admitted == 0:
                return
            budget -= admitted

    def _start(self, plan: StepPlan, state: RequestState, budget: int) -> int:
        """Open a waiting request; returns the rows it takes, 0 when it does not fit now."""
        admission = self.store.admit(state.id, state.tokens)
        state.computed_tokens = admission.cached_tokens
        rows = self._prefill_rows(state, budget)
        if rows < 1 or not self.store.grow(state.id, state.computed_tokens + rows):
            self.store.release(state.id)
            state.computed_tokens = 0
            return 0
        self.waiting.remove(state)
        self.running.append(state)
        state.phase = Phase.RUNNING
        state.admission_order = self._admissions
        state.cached_tokens = admission.cached_tokens
        self._admissions += 1
        plan.cached_now[state.id] = admission.cached_tokens
        plan.reused.extend(admission.reused)
        plan.lifecycle.append(
            LifecycleEvent("admitted", state.id, admission.cached_tokens, f"{admission.cached_tokens} cached tokens")
        )
        plan.scheduled.append(ScheduledRows(state, rows))
        return rows
