"""Does recording change the run? Plays it back with an observer that asks for nothing, and compares decisions.

Must not know who asks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divtrace.recorder.logits import hash_logits
from divtrace.replay.choices import repeatable_choices
from divtrace.replay.replay import Replayer
from divtrace.replay.watchers import Watcher
from engine.observer import StepEvent


@dataclass(frozen=True, slots=True)
class RecordingCheck:
    """Decisions compared; `first_step` is the first step whose token or logits differ, None when none does."""

    decisions: int
    with_logits: bool
    first_step: int | None


class _Decisions(Watcher):
    def __init__(self) -> None:
        super().__init__(kv_rows=False)
        self.chosen: list[int] = []
        self.hashes: list[int] = []

    def step_finished(self, event: StepEvent) -> None:
        hashes = hash_logits(event.logits)
        for row in event.sampled:
            self.chosen.append(row.chosen_token)
            self.hashes.append(hashes[row.head_row])


def check_recording(replayer: Replayer, last_step: int | None = None) -> RecordingCheck:
    """Play steps `0 .. last_step` back without a recorder, and hold every decision against the recorded ones."""
    seen = _Decisions()
    replayer.watch((seen,), last_step)
    trace = replayer.trace
    count = len(seen.chosen)
    steps = trace.column("sampled", "step", 0, count)
    differs = trace.column("sampled", "chosen", 0, count) != np.array(seen.chosen, np.int64)
    differs &= repeatable_choices(trace)[:count]
    with_logits = trace.has_column("sampled", "logits_hash")
    if with_logits:
        differs |= trace.column("sampled", "logits_hash", 0, count) != np.array(seen.hashes, np.uint64)
    found = np.flatnonzero(differs)
    return RecordingCheck(count, with_logits, int(steps[found[0]]) if found.size else None)
