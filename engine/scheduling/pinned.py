"""Playback: the schedule of an earlier run, followed to the letter. Must not know where it was read from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.errors import PlaybackError
from engine.kv.store import KVStore
from engine.observer import LifecycleEvent
from engine.scheduling.plan import ScheduledRows, StepPlan
from engine.scheduling.queues import RequestQueues
from engine.speculative.drafter import Proposal
from engine.state import Phase, RequestState


@dataclass(frozen=True, slots=True)
class PinnedRows:
    """`rows` known tokens of a request from `first_position`, then the proposals that were drafted for it.

    `cached_tokens` positions had just been taken from the prefix cache.
    """

    request_id: str
    first_position: int
    rows: int
    cached_tokens: int
    proposal: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class PinnedStep:
    """One step of the earlier run: who was preempted, who had been ended from outside, and the rows in order.

    `failed` are those whose logits had allowed no token in the step before: where that step is known, nobody sees it.
    """

    rows: tuple[PinnedRows, ...]
    preempted: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()


class PinnedScheduler(RequestQueues):
    """Plays `steps` back. Decides nothing: where the run cannot be followed it says so and stops."""

    def __init__(self, steps: Sequence[PinnedStep], store: KVStore, bonus: bool = True) -> None:
        self.steps = steps
        super().__init__(store)
        self.bonus = bonus

    def submit(self, state: RequestState) -> str | None:
        """Make a request known; it starts where the pinned schedule starts it."""
        state.phase = Phase.WAITING
        self.waiting.append(state)
        return None

    def plan(self, step: int) -> StepPlan | None:
        """The pinned rows of `step`; None after the last one.

        Raises:
            PlaybackError: a request is not where the earlier run had it; names step, request and positions.
        """
        if step >= len(self.steps):
            for state in [*self.running, *self.waiting]:
                self.remove(state)
            return None
        plan = StepPlan()
        pinned = self.steps[step]
        known = {state.id: state for state in [*self.running, *self.waiting]}
        for request_id in (*pinned.ended, *pinned.failed):
            if request_id in known:
                self.remove(known[request_id], reusable=request_id not in pinned.failed)
        for request_id in pinned.preempted:
            state = _find(known, request_id, step)
            if state in self.running:
                self.preempt(plan, state, "pinned")
        for rows in pinned.rows:
            self._schedule(plan, rows, _find(known, rows.request_id, step), step)
        return plan

    def make_room_for_proposals(self, plan: StepPlan) -> None:
        """Grow K/V for the pinned proposals, in the order in which the earlier run did.

        Raises:
            PlaybackError: they do not fit; names the request.
        """
        for item in plan.scheduled:
            if item.proposal.tokens and not self.store.grow(item.state.id, item.end_position(self.bonus)):
                raise no_block_is_free(item.state.last_scheduled_step, item.state.id)

    def fill_up(self, plan: StepPlan, step: int) -> None:
        """Nothing to do: the pinned rows are all there is."""

    def _schedule(self, plan: StepPlan, rows: PinnedRows, state: RequestState, step: int) -> None:
        if state.phase is Phase.WAITING:
            self._admit(plan, rows, state, step)
        if state.computed_tokens != rows.first_position:
            raise PlaybackError(
                f"step {step}: request {state.id!r} stands at position {state.computed_tokens}, "
                f"the pinned schedule has it at {rows.first_position}; the runs have parted before."
            )
        if rows.first_position + rows.rows > state.known_tokens:
            raise PlaybackError(
                f"step {step}: request {state.id!r} knows {state.known_tokens} tokens, the pinned schedule feeds "
                f"positions up to {rows.first_position + rows.rows}; the runs have parted before."
            )
        if not self.store.grow(state.id, rows.first_position + rows.rows):
            raise no_block_is_free(step, state.id)
        state.last_scheduled_step = step
        plan.scheduled.append(ScheduledRows(state, rows.rows, len(rows.proposal), Proposal(rows.proposal)))

    def _admit(self, plan: StepPlan, rows: PinnedRows, state: RequestState, step: int) -> None:
        admission = self.open(state, min(rows.cached_tokens, self.rows_of_sampled(state)))
        if admission.cached_tokens != rows.cached_tokens:
            raise PlaybackError(
                f"step {step}: the prefix cache holds {admission.cached_tokens} tokens of request {state.id!r}, "
                f"the pinned schedule took {rows.cached_tokens}; the runs have parted before."
            )
        state.computed_tokens = state.cached_tokens = admission.cached_tokens
        state.phase = Phase.RUNNING
        self.waiting.remove(state)
        self.running.append(state)
        plan.cached_now[state.id] = admission.cached_tokens
        plan.reused.extend(admission.reused)
        plan.lifecycle.append(
            LifecycleEvent("admitted", state.id, admission.cached_tokens, f"{admission.cached_tokens} cached tokens")
        )


def no_block_is_free(step: int, request_id: str) -> PlaybackError:
    """The error of a pool that is smaller than the earlier run's."""
    return PlaybackError(f"step {step}: no KV block is free for request {request_id!r}; use the run's own kv_blocks.")


def _find(known: Mapping[str, RequestState], request_id: str, step: int) -> RequestState:
    if request_id not in known:
        raise PlaybackError(f"step {step}: request {request_id!r} has ended or was never submitted.")
    return known[request_id]
