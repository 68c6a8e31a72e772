"""What a check found: a place in the trace and what is wrong there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Finding:
    """One violated invariant. `place` is a table and row, or a step and request."""

    place: str
    problem: str

    def __str__(self) -> str:
        return f"{self.place}: {self.problem}"


def where_wrong(table: str, wrong: npt.ArrayLike, problem: str, first_row: int = 0) -> Iterator[Finding]:
    """One finding for the first row at which `wrong` holds, with the number of rows that share it."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        others = f" (and {len(rows) - 1} more rows)" if len(rows) > 1 else ""
        yield Finding(f"{table} row {rows[0] + first_row}", problem + others)
