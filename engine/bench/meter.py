"""Runs requests on an engine and keeps what a benchmark needs: one record a step, the moments of each request."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from engine.batch import SegmentKind
from engine.engine import Engine
from engine.metrics.request_times import RequestTimes
from engine.model.load import LoadedModel
from engine.observer import ObserverNeeds, RunEnding, RunInfo, StepEvent
from engine.request import Completion, FinishReason, Request
from engine.settings import EngineSettings


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step: its time, rows, committed tokens, and the queue after it was planned."""

    elapsed_s: float
    packed_rows: int
    head_rows: int
    prefill_rows: int
    segments: int
    committed_tokens: int
    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    preempted: int
    draft_rows: int = 0

    @property
    def is_decode_only(self) -> bool:
        """No row of a prompt in it."""
        return self.prefill_rows == 0


Clock = Callable[[], float]
"""Monotonic seconds: `time.perf_counter`, or `time.process_time` where other programs share the processor."""


@dataclass(slots=True)
class RunMeter:
    """An engine observer that measures by one monotonic `clock`; a step lasts from the end of the one before."""

    clock: Clock = time.perf_counter
    steps: list[StepRecord] = field(default_factory=list)
    requests: dict[str, RequestTimes] = field(default_factory=dict)
    last_step: dict[str, int] = field(default_factory=dict)
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    _last_s: float | None = None

    @property
    def needs(self) -> ObserverNeeds:
        """Nothing beyond what every step has."""
        return ObserverNeeds()

    def run_started(self, info: RunInfo) -> None:
        """Nothing to do."""

    def request_submitted(self, request: Request, step: int) -> None:  # noqa: ARG002
        """Start a request's clock."""
        now = self.clock()
        self._last_s = now if self._last_s is None else self._last_s
        self.requests[request.id] = RequestTimes(len(request.prompt), request.max_tokens, now)

    def step_finished(self, event: StepEvent) -> None:
        """Record a step."""
        now = self.clock()
        started = now if self._last_s is None else self._last_s
        self._last_s = now
        for segment in event.batch.segments:
            times = self.requests[segment.request_id]
            times.scheduled_s = started if times.scheduled_s is None else times.scheduled_s
            self.last_step[segment.request_id] = event.batch.step
        committed = Counter(row.request_id for row in event.sampled if row.committed)
        for request_id, tokens in committed.items():
            self.requests[request_id].committed(tokens, now)
        for draft in event.drafts:
            self.proposed_tokens += len(draft.proposed)
            self.accepted_tokens += draft.accepted_tokens
        prompt_kinds = (SegmentKind.PREFILL, SegmentKind.RECOMPUTE)
        self.steps.append(
            StepRecord(
                elapsed_s=now - started,
                packed_rows=event.batch.packed_rows,
                head_rows=event.batch.head_rows,
                prefill_rows=sum(s.rows for s in event.batch.segments if s.kind in prompt_kinds),
                segments=len(event.batch.segments),
                committed_tokens=committed.total(),
                running=event.queue.running,
                waiting=event.queue.waiting,
                blocks_used=event.queue.blocks_used,
                blocks_total=event.queue.blocks_total,
                preempted=sum(e.kind == "preempted" for e in event.lifecycle),
                draft_rows=sum(forward.batch.packed_rows for forward in event.draft_forwards),
            )
        )

    def request_finished(self, completion: Completion, step: int) -> None:  # noqa: ARG002
        """Stop a request's clock."""
        self.requests[completion.request_id].finished_s = self.clock()

    def run_finished(self, ending: RunEnding) -> None:
        """Nothing to do."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """One finished run. `elapsed_s` is from the first submission to the last token; loading is not in it."""

    elapsed_s: float
    meter: RunMeter
    completions: Mapping[str, Completion]

    @property
    def output_tokens(self) -> int:
        """Committed tokens of all requests."""
        return sum(len(done.tokens) for done in self.completions.values())

    @property
    def tokens_per_s(self) -> float:
        """Output tokens by the whole run's time."""
        return self.output_tokens / self.elapsed_s

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens of the steps that held no prompt row, by the time of these steps."""
        steps = [step for step in self.meter.steps if step.is_decode_only]
        return sum(s.committed_tokens for s in steps) / sum(s.elapsed_s for s in steps) if steps else 0.0

    @property
    def packed_rows(self) -> int:
        """Rows that the target computed."""
        return sum(step.packed_rows for step in self.meter.steps)

    @property
    def finished(self) -> list[str]:
        """Requests that were served to their end."""
        served = (FinishReason.LENGTH, FinishReason.STOP)
        return [name for name, done in self.completions.items() if done.finish_reason in served]

    def time_to_first_token_s(self, request_id: str) -> float:
        """TTFT of a request that produced a token."""
        value = self.meter.requests[request_id].time_to_first_token_s
        assert value is not None, request_id
        return value

    def end_to_end_s(self, request_id: str) -> float:
        """End-to-end latency of a request that ended."""
        value = self.meter.requests[request_id].end_to_end_s
        assert value is not None, request_id
        return value


def measure(
    loaded: LoadedModel, settings: EngineSettings, requests: Sequence[Request], clock: Clock = time.perf_counter
) -> Measurement:
    """Run `requests` to their end under `settings`, timed by `clock`."""
    meter = RunMeter(clock)
    with Engine(loaded, settings, (meter,)) as engine:
        started = clock()
        for request in requests:
            engine.submit(request)
        completions = engine.run()
        return Measurement(clock() - started, meter, completions)


def warm_up(loaded: LoadedModel, arms: Iterable[EngineSettings]) -> None:
    """Let every arm make its weights and compile its kernels on a few tokens, before anything is measured."""
    for settings in arms:
        measure(loaded, settings, [Request("warm-up", (1, 2, 3, 4, 5, 6, 7, 8), 3, ignore_eos=True)])
