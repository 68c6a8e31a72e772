"""Iteration-level scheduling: decodes first, then unfinished prefills, then admissions, within one token budget.

Source of the idea: Orca (Yu et al., OSDI 2022); the mixed batch with decode first is vLLM V1's and mini-vllm-rs's.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.kv.store import KVStore
from engine.observer import LifecycleEvent
from engine.scheduling.admission import may_start, reason_it_can_never_run
from engine.scheduling.ordering import decodes_in_order, ordered, preemption_victim
from engine.scheduling.plan import ScheduledRows, StepPlan
from engine.scheduling.queues import RequestQueues
from engine.settings import BudgetUnit, DrafterKind, EngineSettings
from engine.state import Phase, RequestState


class ContinuousScheduler(RequestQueues):
    """Owns the waiting and running lists; the engine moves states between phases only through it."""

    def __init__(self, settings: EngineSettings, store: KVStore) -> None:
        self.settings = settings
        super().__init__(store)
        self._admissions = 0
        self._turns = 0

    def submit(self, state: RequestState) -> str | None:
        """Queue a request; returns the reason when it can never run (and does not queue it)."""
        reason = reason_it_can_never_run(state, self.settings)
        if reason is None:
            state.phase = Phase.WAITING
            self.waiting.append(state)
        return reason

    def plan(self, step: int) -> StepPlan | None:
        """Rows for this step, None when nothing can run."""
        plan = StepPlan()
        plan.scheduled, budget = self._rows_of_running()
        while not self.store.can_grow({item.state.id: item.end_position(bonus=True) for item in plan.scheduled}):
            victim = preemption_victim(self.running, self.settings.scheduling)
            self.preempt(plan, victim, "KV blocks ran out; will recompute")
            plan.scheduled, budget = self._rows_of_running()
        # Whoever is preempted is so before anything grows: a playback that does the same finds the same blocks.
        for item in plan.scheduled:
            self.store.grow(item.state.id, item.end_position(bonus=True))
        if not plan.lifecycle:
            self._admit(plan, budget)
        self._take_turns(plan, step)
        return plan if plan.scheduled or plan.lifecycle else None

    def make_room_for_proposals(self, plan: StepPlan) -> None:
        """Grow K/V for drafted proposals; what does not fit is not proposed (nobody is preempted for a guess)."""
        bonus = self.settings.speculation.bonus
        for item in plan.scheduled:
            while item.proposal.tokens and not self.store.grow(item.state.id, item.end_position(bonus)):
                item.proposal = item.proposal.first(len(item.proposal.tokens) - 1)

    def fill_up(self, plan: StepPlan, step: int) -> None:
        """Rows that were kept for proposals and not drafted go to prefills and to who waits, in the same step.

        They get their K/V before the proposals get theirs: so does a playback, which knows no second round.
        """
        if self.settings.speculation.drafter is DrafterKind.NONE or plan.has_preempted:
            return
        budget = self.settings.token_budget - sum(self._cost(item) for item in plan.scheduled)
        rows = {item.state.id: item for item in plan.scheduled}
        for state in self._in_order([s for s in self.running if not s.is_decoding]):
            item = rows.get(state.id) or ScheduledRows(state, 0)
            wanted = self._prefill_rows(state, item.rows + budget)
            if wanted <= item.rows or not self.store.grow(state.id, state.computed_tokens + wanted):
                continue
            budget -= wanted - item.rows
            item.rows = wanted
            if state.id not in rows:
                plan.scheduled.append(item)
        self._admit(plan, budget)
        self._take_turns(plan, step)

    def _rows_of_running(self) -> tuple[list[ScheduledRows], int]:
        """Rows that running requests should get, decodes first, and the budget that is left."""
        budget = self.settings.token_budget
        scheduled: list[ScheduledRows] = []
        decoding = decodes_in_order([s for s in self.running if s.is_decoding], self.settings.scheduling)
        # A guess must not keep others from a row of their own: later decodes, an unfinished prefill, or who waits.
        may_join = bool(self.waiting) and len(self.running) < self.settings.max_active
        others = int(len(decoding) < len(self.running) or may_join)
        for index, state in enumerate(decoding):
            if budget < 1:
                break
            kept_for_others = len(decoding) - 1 - index + others
            proposal = self._most_proposals(state, budget - kept_for_others)
            scheduled.append(ScheduledRows(state, 1, proposal))
            budget -= self._cost_of_decode(proposal)
        # The policy says who is served; rows lie as their requests were admitted, whoever's turn it is.
        places = {state.id: place for place, state in enumerate(self.running)}
        scheduled.sort(key=lambda item: places[item.state.id])
        for state in self._in_order([s for s in self.running if not s.is_decoding]):
            rows = self._prefill_rows(state, budget)
            if rows > 0:
                scheduled.append(ScheduledRows(state, rows))
                budget -= rows
        return scheduled, budget

    def _take_turns(self, plan: StepPlan, step: int) -> None:
        """Whoever got rows goes to the end of the round, in the order in which they had stood there."""
        for item in sorted(plan.scheduled, key=lambda item: item.state.last_turn):
            item.state.last_scheduled_step = step
            item.state.last_turn = self._turns
            self._turns += 1

    def _in_order(self, states: Sequence[RequestState]) -> list[RequestState]:
        return ordered(states, self.settings.scheduling, lambda s: self.store.cached_prefix_length(s.tokens))

    def _most_proposals(self, state: RequestState, budget: int) -> int:
        """Proposals that a decode may get: never more tokens than may still come, never more rows than `budget`."""
        speculation = self.settings.speculation
        if speculation.drafter is DrafterKind.NONE:
            return 0
        # With the bonus token K proposals take K + 1 rows and can commit K + 1 tokens, else K and K.
        extra = 1 if speculation.bonus else 0
        most = min(speculation.most_tokens, state.remaining_output - extra)
        if self.settings.budget_unit is BudgetUnit.ROWS:
            most = min(most, budget - extra)
        return max(0, most)

    def _cost(self, item: ScheduledRows) -> int:
        """What a request's rows take from the budget, with the proposals that it has now."""
        return self._cost_of_decode(len(item.proposal.tokens)) if item.state.is_decoding else item.rows

    def _cost_of_decode(self, proposals: int) -> int:
        if self.settings.budget_unit is BudgetUnit.WORK:
            return 1
        return max(1, proposals + (1 if self.settings.speculation.bonus else 0))

    def _prefill_rows(self, state: RequestState, budget: int) -> int:
        settings = self.settings
        rows = state.uncomputed_tokens
        if not settings.chunked_prefill and rows <= settings.token_budget:
            return rows if rows <= budget else 0
        # Without chunking only a recompute comes here: prompt and output together may outgrow the budget.
        if settings.align_prefill_to_blocks:
            # Stop where a prefix hit would start, so that the rest has the same row count cold and warm.
            edge = (state.known_tokens - 1) // settings.block_size * settings.block_size
            if state.computed_tokens < edge:
                rows = edge - state.computed_tokens
        if settings.long_prefill_threshold:
            rows = min(rows, settings.long_prefill_threshold)
        return min(rows, budget)

    def _admit(self, plan: StepPlan, budget: int) -> None:
        group_is_open = not self.running
        for state in self._in_order(self.waiting):
            if budget < 1 or not may_start(state, self.running, group_is_open, self.settings):
                return
            if self.settings.prefix_cache and self.store.pending_prefix(state.tokens):
                continue  # single flight: somebody is computing a block that this prompt will share
            if self._prompt_is_under_way(state):
                continue
            admitted = self._start(plan, state, budget)
            if admitted == 0:
                return
            budget -= admitted

    def _prompt_is_under_way(self, state: RequestState) -> bool:
        """True when the request that `state` samples still computes what `state` will take over."""
        parent = self.sampled_request(state) if self.settings.prefix_cache else None
        return parent is not None and parent.computed_tokens < len(state.request.prompt) - 1

    def _reusable_tokens(self, state: RequestState) -> int:
        """Positions that a waiting request need not compute."""
        cached = self.store.cached_prefix_length(state.tokens)
        return max(cached, self.rows_of_sampled(state)) if self.settings.prefix_cache else cached

    def _start(self, plan: StepPlan, state: RequestState, budget: int) -> int:
        """Open a waiting request; returns the rows it takes, 0 when it does not fit now."""
        state.computed_tokens = self._reusable_tokens(state)
        rows = self._prefill_rows(state, budget)
        if rows < 1 or not self.store.can_admit(state.tokens, state.computed_tokens + rows):
            state.computed_tokens = 0
            return 0
        admission = self.open(state, state.computed_tokens)
        self.store.grow(state.id, state.computed_tokens + rows)
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
