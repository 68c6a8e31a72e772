"""Small numbers for request ids, so that who wrote a row fits an integer array. Must not know rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.observer import ReusedRow


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


def reused_rows(request_id: str, writers: npt.NDArray[np.int64], names: Sequence[str]) -> tuple[ReusedRow, ...]:
    """Records of rows 0 .. n - 1 that `request_id` did not compute, from their writers (n, 3)."""
    return tuple(
        ReusedRow(request_id, position, names[number], step, row)
        for position, (number, step, row) in enumerate(writers.tolist())
    )
