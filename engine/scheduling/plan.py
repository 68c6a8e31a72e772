"""What a scheduler decides: rows per request for one step, and what happened on the way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from engine.batch import Batch, Segment, SegmentKind
from engine.observer import LifecycleEvent, ReusedRow
from engine.speculative.drafter import Proposal
from engine.state import RequestState


@dataclass(slots=True)
class ScheduledRows:
    """`rows` known tokens of a request to feed, and at most `max_proposal` draft tokens behind them."""

    state: RequestState
    rows: int
    max_proposal: int = 0
    proposal: Proposal = field(default_factory=Proposal)

    def end_position(self, bonus: bool) -> int:
        """One past the last position that gets K/V, fed proposals included."""
        return self.state.computed_tokens + self.rows + len(fed_proposals(self.proposal, bonus))


@dataclass(slots=True)
class StepPlan:
    """One step's decision, in batch order."""

    scheduled: list[ScheduledRows] = field(default_factory=list)
    lifecycle: list[LifecycleEvent] = field(default_factory=list)
    reused: list[ReusedRow] = field(default_factory=list)
    cached_now: dict[str, int] = field(default_factory=dict)

    @property
    def has_preempted(self) -> bool:
        """True when a request lost its K/V for this step: nobody is admitted in such a step."""
        return any(event.kind == "preempted" for event in self.lifecycle)

    def to_batch(self, step: int, bonus: bool) -> Batch:
        """Lay the rows out. `bonus`: K proposals take K + 1 rows; without it the last proposal is not fed."""
        segments: list[Segment] = []
        first_row = 0
        for item in self.scheduled:
            segment = _segment(item, first_row, bonus, self.cached_now.get(item.state.id, 0))
            segments.append(segment)
            first_row += segment.rows
        return Batch(step, tuple(segments))


def fed_proposals(proposal: Proposal, bonus: bool) -> tuple[int, ...]:
    """Proposals that become rows: all with the bonus token, else all but the last, whose row would decide the bonus."""
    return proposal.tokens if bonus else proposal.tokens[:-1]


class Scheduler(Protocol):
    """Plans steps, and owns who is running and who waits."""

    running: list[RequestState]
    waiting: list[RequestState]

    def submit(self, state: RequestState) -> str | None:
        """Queue a request; the reason when it can never run (it is then not queued)."""
        ...

    def remove(self, state: RequestState, reusable: bool = True) -> None:
        """Forget a request that ended, and free its K/V. `reusable` off: none of it may serve another request."""
        ...

    def plan(self, step: int) -> StepPlan | None:
        """Rows for `step`, None when nothing can run; admits and preempts on the way."""
        ...

    def make_room_for_proposals(self, plan: StepPlan) -> None:
        """Grow K/V for the proposals that have been drafted for `plan`."""
        ...

    def fill_up(self, plan: StepPlan, step: int) -> None:
        """Give rows that were kept for proposals, and not drafted, to others."""
        ...


def _segment(item: ScheduledRows, first_row: int, bonus: bool, cached_tokens: int) -> Segment:
    state = item.state
    first = state.computed_tokens
    proposed = fed_proposals(item.proposal, bonus)
    tokens = state.slice_tokens(first, first + item.rows) + proposed
    reaches_end = first + item.rows == state.known_tokens
    wanted = 1 + len(proposed) if reaches_end else 0
    return Segment(
        request_id=state.id,
        kind=_kind(item),
        first_position=first,
        tokens=tokens,
        first_row=first_row,
        wanted_logits=wanted,
        cached_tokens=cached_tokens,
        proposed_tokens=len(proposed),
    )


def _kind(item: ScheduledRows) -> SegmentKind:
    state = item.state
    if item.proposal.tokens:
        return SegmentKind.VERIFY
    if state.computed_tokens < state.recompute_until:
        return SegmentKind.RECOMPUTE
    return SegmentKind.DECODE if state.is_decoding else SegmentKind.PREFILL
