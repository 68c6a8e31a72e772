"""Small numbers for request ids, so that who wrote a row fits an integer array. Must not know rows."""

from __future__ import annotations

from collections.abc import Sequence


class RequestNumbers:
    """Gives each request id the next number at first sight, and the same one ever after."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []

    def number_of(self, request_id: str) -> int:
        """The id's number; a request that was preempted and comes back keeps its own."""
        number = self._numbers.setdefault(request_id, len(self._names))
        if number == len(self._names):
            self._names.append(request_id)
        return number

    @property
    def names(self) -> Sequence[str]:
        """Request ids in the order of their numbers."""
        return self._names
