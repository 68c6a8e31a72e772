"""Start and phases of every step on one clock, in whole nanoseconds, so that slices add up without rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divtrace.align.index import Integers
from divtrace.trace.reader import Trace

PHASES = ("schedule", "draft", "forward", "sample")
UNTIMED_STEP_NS = 1_000_000
LONGEST_PHASE_S = 1e7


@dataclass(frozen=True, slots=True)
class StepClock:
    """`starts_ns` has shape (steps + 1,): the last is the end. `phases_ns` has shape (steps, 4), in `PHASES`' order.

    A trace keeps how long the phases of a step took and not when the step began: steps follow each other here without
    the pauses between them. Where no time was recorded, `is_measured` is False and every step takes a millisecond.
    """

    starts_ns: Integers
    phases_ns: Integers
    is_measured: bool

    @property
    def durations_ns(self) -> Integers:
        """Nanoseconds of each step, shape (steps,)."""
        return np.diff(self.starts_ns)


def read_clock(trace: Trace) -> StepClock:
    """The clock of a run. Times that are no time (negative, not finite, beyond months) count as zero."""
    seconds = np.stack([trace.column("steps", f"{phase}_s").astype(np.float64) for phase in PHASES], axis=1)
    usable = np.isfinite(seconds) & (seconds > 0) & (seconds < LONGEST_PHASE_S)
    phases = np.rint(np.where(usable, seconds, 0.0) * 1e9).astype(np.int64)
    is_measured = bool(phases.any())
    if not is_measured:
        phases[:, PHASES.index("forward")] = UNTIMED_STEP_NS
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(phases.sum(axis=1))])
    return StepClock(starts, phases, is_measured)
