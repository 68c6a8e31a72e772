"""Who goes first. Pure functions over request states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.settings import SchedulingPolicy
from engine.state import RequestState

CachedLength = Callable[[RequestState], int]


def ordered(
    states: Sequence[RequestState], policy: SchedulingPolicy, cached_length: CachedLength
) -> list[RequestState]:
    """States in the order in which they should be served; ties go to the one submitted first.

    `cached_length` tells how many tokens of a waiting request the prefix cache holds.
    """
    match policy:
        case SchedulingPolicy.FCFS:
            return sorted(states, key=lambda s: s.order)
        case SchedulingPolicy.PRIORITY:
            return sorted(states, key=lambda s: (-s.request.priority, s.order))
        case SchedulingPolicy.SHORTEST_PREFILL:
            return sorted(states, key=lambda s: (s.uncomputed_tokens, s.order))
        case SchedulingPolicy.ROUND_ROBIN:
            return sorted(states, key=lambda s: (s.last_turn, s.order))
        case SchedulingPolicy.LONGEST_CACHED_PREFIX:
            return sorted(states, key=lambda s: (-cached_length(s), s.order))


def decodes_in_order(states: Sequence[RequestState], policy: SchedulingPolicy) -> list[RequestState]:
    """The same among decodes: each gets its row, the first ones get more for their proposals where rows are short.

    Each lacks one token and no prefix, so shortest prefill and longest cached prefix mean first come, first served.
    """
    return ordered(states, policy, lambda _: 0)


def preemption_victim(running: Sequence[RequestState], policy: SchedulingPolicy) -> RequestState:
    """The youngest running request, among those of lowest priority where priorities count."""
    if policy is SchedulingPolicy.PRIORITY:
        return min(running, key=lambda s: (s.request.priority, -s.admission_order))
    return max(running, key=lambda s: s.admission_order)
