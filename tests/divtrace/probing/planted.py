"""Cases with a known fault, to see that the probe finds it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from divtrace.probing.cases import Case, Rows

WIDTH = 12
NUDGE = np.float32(2.0**-20)


def case_of(run: Callable[[Rows], np.ndarray], **settings: object) -> Case:
    return Case(
        operation="planted",
        implementation="test",
        shape="12",
        dtype="float32",
        input_size=WIDTH,
        run=run,
        **settings,
    )


def honest(rows: Rows) -> np.ndarray:
    return rows * np.float32(3.0)


def nudged_at(*row_counts: int) -> Callable[[Rows], np.ndarray]:
    """Every row moves when the call has one of these row counts: a table with holes."""
    return lambda rows: honest(rows) * (1 + NUDGE) if len(rows) in row_counts else honest(rows)


def last_row_apart(rows: Rows) -> np.ndarray:
    """A remainder tile: from three rows on the last row is summed in another way."""
    out = honest(rows)
    if len(rows) >= 3:
        out[-1] *= 1 + NUDGE
    return out


def scaled_by_company(rows: Rows) -> np.ndarray:
    """A batch-wide maximum picks the scale."""
    return honest(rows) * (1 + NUDGE) if np.abs(rows).max() > 5 else honest(rows)


def forgetful() -> Callable[[Rows], np.ndarray]:
    """Every second call of four rows differs."""
    calls: list[int] = []

    def run(rows: Rows) -> np.ndarray:
        calls.append(len(rows))
        return honest(rows) * (1 + NUDGE) if len(rows) == 4 and calls.count(4) % 2 else honest(rows)

    return run
