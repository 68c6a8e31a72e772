"""An observer that keeps everything of a run as bytes, so that two runs can be compared bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.decide import ForcedTokens
from engine.engine import Engine
from engine.kernels.policy import SiteOverride
from engine.model.load import LoadedModel
from engine.observer import ObserverNeeds, RunEnding, RunInfo, StepEvent
from engine.request import Completion, Request
from engine.settings import EngineSettings


@dataclass
class Collector:
    """What was decided and what K/V was written, by request and position; a later write replaces an earlier one."""

    decisions: dict[tuple[str, int], tuple[int, bytes]] = field(default_factory=dict)
    kv: dict[tuple[str, int], bytes] = field(default_factory=dict)
    events: list[StepEvent] = field(default_factory=list)
    completions: dict[str, Completion] = field(default_factory=dict)
    submitted: list[str] = field(default_factory=list)
    ending: RunEnding | None = None
    _writes: dict[tuple[str, int, int], bytes] = field(default_factory=dict)

    @property
    def needs(self) -> ObserverNeeds:
        return ObserverNeeds(kv_rows=True)

    def run_started(self, info: RunInfo) -> None:
        self.info = info

    def request_submitted(self, request: Request, step: int) -> None:
        self.submitted.append(request.id)

    def step_finished(self, event: StepEvent) -> None:
        self.events.append(event)
        for reused in event.reused:
            written = self._writes[reused.writer_request_id, reused.writer_step, reused.writer_row]
            self.kv[reused.request_id, reused.position] = written
        assert event.kv_rows is not None
        rows = [np.array(array) for layer in event.kv_rows for array in (layer.keys, layer.values)]
        for segment in event.batch.segments:
            for index in range(segment.rows):
                row = segment.first_row + index
                content = b"".join(np.ascontiguousarray(array[row]).tobytes() for array in rows)
                self.kv[segment.request_id, segment.first_position + index] = content
                self._writes[segment.request_id, event.batch.step, row] = content
        for sampled in event.sampled:
            if sampled.committed:
                logits = np.ascontiguousarray(event.processed_logits[sampled.head_row]).tobytes()
                self.decisions[sampled.request_id, sampled.position] = (sampled.chosen_token, logits)

    def request_finished(self, completion: Completion, step: int) -> None:
        self.completions[completion.request_id] = completion

    def run_finished(self, ending: RunEnding) -> None:
        self.ending = ending

    def of_request(self, request: Request) -> RequestRecord:
        """Tokens, decisions and the K/V of every position that was computed, in position order."""
        tokens = self.completions[request.id].tokens
        first = len(request.prompt)
        positions = range(first + max(len(tokens) - 1, 0))
        return RequestRecord(
            tokens,
            tuple(self.decisions[request.id, first + i] for i in range(len(tokens))),
            tuple(self.kv[request.id, p] for p in positions if tokens or (request.id, p) in self.kv),
        )


@dataclass(frozen=True)
class RequestRecord:
    """One request's part of a run; equal records are equal bit for bit."""

    tokens: tuple[int, ...]
    decisions: tuple[tuple[int, bytes], ...]
    kv: tuple[bytes, ...]


def collect(
    loaded: LoadedModel,
    settings: EngineSettings,
    requests: Sequence[Request],
    overrides: tuple[SiteOverride, ...] = (),
    forced: ForcedTokens | None = None,
) -> Collector:
    """Run requests to their end and return what was seen."""
    collector = Collector()
    with Engine(loaded, settings, (collector,), overrides, forced) as engine:
        for request in requests:
            engine.submit(request)
        engine.run()
    return collector
