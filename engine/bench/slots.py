"""What a batch's slots were used for. Pure arithmetic.

A slot-step is one slot during one step. Static batching holds all slots of a group until its longest request has ended,
so it spends slots x longest; continuous batching gives a slot away in the step after its request has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LENGTHS = (20, 25, 30, 40, 50, 60, 700, 800)
"""Output lengths of the batch that the usual example is told with."""


@dataclass(frozen=True, slots=True)
class SlotUse:
    """Slot-steps of a run: all that its slots existed for, and those in which a request decided a token."""

    slot_steps: int
    useful: int

    @property
    def wasted(self) -> int:
        """Slot-steps in which the slot's request had ended, or nobody had it."""
        return self.slot_steps - self.useful

    @property
    def wasted_share(self) -> float:
        """Wasted by all, 0 to 1."""
        return self.wasted / self.slot_steps if self.slot_steps else 0.0


def expected_static_use(lengths: Sequence[int], slots: int) -> SlotUse:
    """What static batching must spend on requests of these output lengths, group after group, in order."""
    groups = [lengths[first : first + slots] for first in range(0, len(lengths), slots)]
    return SlotUse(sum(slots * max(group) for group in groups), sum(lengths))


def measured_use(committed_by_step: Sequence[int], slots: int) -> SlotUse:
    """Slot use of a run without speculation, from the tokens that each step committed."""
    return SlotUse(slots * len(committed_by_step), sum(committed_by_step))


def scaled(lengths: Sequence[int], factor: int) -> tuple[int, ...]:
    """Lengths divided by one factor, rounded up, so that none becomes 0."""
    return tuple(-(-length // factor) for length in lengths)
