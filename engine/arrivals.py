"""When requests enter the waiting queue. Must not know how they are scheduled."""

from __future__ import annotations

from collections.abc import Callable

from engine.state import RequestState

CommittedTokens = Callable[[str], int]
"""Output tokens that a request has committed so far, by its id."""


class Arrivals:
    """Requests that have not arrived yet, in submission order."""

    def __init__(self) -> None:
        self._pending: list[RequestState] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def add(self, state: RequestState) -> None:
        """Remember a request until its arrival rule holds."""
        self._pending.append(state)

    def due(self, step: int, committed_tokens: CommittedTokens) -> list[RequestState]:
        """Take out the requests whose rule holds before `step` is planned."""
        due = [s for s in self._pending if _holds(s, step, committed_tokens)]
        self._pending = [s for s in self._pending if s not in due]
        return due

    def earliest(self, step: int, committed_tokens: CommittedTokens) -> list[RequestState]:
        """Nothing runs: take out the requests with the earliest future `at_step` (idle steps are not counted).

        Empty when every pending request waits for one that will never commit enough tokens.
        """
        timed = [s for s in self._pending if s.request.arrival.after_request is None]
        if not timed:
            return []
        first = min(s.request.arrival.at_step for s in timed)
        return self.due(max(step, first), committed_tokens)

    def take_all(self) -> list[RequestState]:
        """Take out everything that is left."""
        pending, self._pending = self._pending, []
        return pending

    def take(self, request_id: str) -> RequestState | None:
        """Take out one request (it was cancelled before it arrived)."""
        for state in self._pending:
            if state.id == request_id:
                self._pending.remove(state)
                return state
        return None


def _holds(state: RequestState, step: int, committed_tokens: CommittedTokens) -> bool:
    arrival = state.request.arrival
    if arrival.at_step > step:
        return False
    return arrival.after_request is None or committed_tokens(arrival.after_request) >= arrival.after_tokens
