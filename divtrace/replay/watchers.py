"""Observers of a replay that keep what a proof needs in memory: K/V rows of steps, logits of one decision.

A trace would hold the same in a file and as hashes. Must not know what is changed in the replay, or why.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from divtrace.recorder.logits import hash_logits
from engine.known import KnownStep
from engine.observer import LayerRows, ObserverNeeds, RunEnding, RunInfo, StepEvent
from engine.request import Completion, Request


class Watcher:
    """An observer that ignores everything but steps. `kv_rows` asks for K/V, as the recorder of the run did."""

    def __init__(self, kv_rows: bool) -> None:
        self._needs = ObserverNeeds(kv_rows=kv_rows)

    @property
    def needs(self) -> ObserverNeeds:
        """What each step's event must contain."""
        return self._needs

    def run_started(self, info: RunInfo) -> None:
        """Nothing to do."""

    def request_submitted(self, request: Request, step: int) -> None:
        """Nothing to do."""

    def step_finished(self, event: StepEvent) -> None:
        """Nothing to do here."""

    def request_finished(self, completion: Completion, step: int) -> None:
        """Nothing to do."""

    def run_finished(self, ending: RunEnding) -> None:
        """Nothing to do."""


class RowKeeper(Watcher):
    """Keeps the K/V rows of every step: rows * layers * 2 * kv_heads * head_size elements in all."""

    def __init__(self) -> None:
        super().__init__(kv_rows=True)
        self.steps: dict[int, KnownStep] = {}

    def step_finished(self, event: StepEvent) -> None:
        """Keep the rows of one step."""
        rows = event.kv_rows or ()
        kept = tuple(LayerRows(_kept(layer.keys), _kept(layer.values)) for layer in rows)
        self.steps[event.batch.step] = KnownStep(kept)


@dataclass(frozen=True, slots=True)
class SeenDecision:
    """One decision of a replay: the token, the processed logits float32 (vocabulary,), the hash of the raw ones."""

    chosen: int
    processed: npt.NDArray[np.float32]
    logits_hash: int


class DecisionWatcher(Watcher):
    """Sees the decisions of one request, by position; where one is made twice, the last counts."""

    def __init__(self, request_id: str, first_position: int, kv_rows: bool) -> None:
        super().__init__(kv_rows)
        self._request_id = request_id
        self._first_position = first_position
        self.seen: dict[int, SeenDecision] = {}

    def step_finished(self, event: StepEvent) -> None:
        """Keep what was decided for the request from the first position on."""
        for row in event.sampled:
            if row.request_id != self._request_id or row.position < self._first_position:
                continue
            raw = event.logits[row.head_row : row.head_row + 1]
            processed = np.array(event.processed_logits[row.head_row])
            self.seen[row.position] = SeenDecision(row.chosen_token, processed, hash_logits(raw)[0])


def _kept(rows: Any) -> Any:
    # An mx.array that is held is never written to; numpy memory may be a view of what a later step reuses.
    return rows if isinstance(rows, mx.array) else np.array(rows)
