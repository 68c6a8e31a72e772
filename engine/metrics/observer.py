"""Turns step events into metrics. Owns the moments of requests under way; must not know who scrapes.

Costs one pass over a step's plan and one over each decided logits row; changes nothing that the engine computes.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry, generate_latest

from engine.metrics.instruments import Instruments
from engine.metrics.near_ties import margins_reached, top_two_gap
from engine.metrics.request_times import RequestTimes
from engine.observer import LifecycleEvent, ObserverNeeds, Plan, RunEnding, RunInfo, SiteChoice, StepEvent
from engine.request import Completion, Request

NEAR_TIE_MARGINS = (0.001, 0.01, 0.1)
KEPT_REQUESTS = 10_000
"""Ended requests whose moments stay readable, the newest ones."""


class MetricsObserver:
    """An engine observer with a Prometheus registry of its own. Serves one run.

    `clock` gives monotonic seconds; `near_tie_margins` are logit gaps.
    """

    def __init__(
        self,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.monotonic,
        near_tie_margins: Sequence[float] = NEAR_TIE_MARGINS,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self.finished: deque[tuple[str, RequestTimes]] = deque(maxlen=KEPT_REQUESTS)
        self._clock = clock
        self._margins = tuple(near_tie_margins)
        self._running: dict[str, RequestTimes] = {}
        self._paths: dict[str, tuple[str, ...]] = {}
        self._caches_prefixes = False
        self._instruments: Instruments

    @property
    def needs(self) -> ObserverNeeds:
        """Nothing beyond what every step has."""
        return ObserverNeeds()

    def render(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def run_started(self, info: RunInfo) -> None:
        """Create the instruments, labelled with the model's name."""
        model = info.settings.get("model", {})
        self._instruments = Instruments(self.registry, str(model.get("source", "unknown")))
        self._caches_prefixes = bool(info.settings.get("prefix_cache", False))

    def request_submitted(self, request: Request, step: int) -> None:  # noqa: ARG002 (the clock tells)
        """A request entered the queue now."""
        self._running[request.id] = RequestTimes(len(request.prompt), request.max_tokens, self._clock())

    def step_finished(self, event: StepEvent) -> None:
        """Count one step."""
        now = self._clock()
        timings = event.timings
        computing_s = timings.draft_s + timings.forward_s + timings.sample_s
        for segment in event.batch.segments:
            times = self._running[segment.request_id]
            if times.scheduled_s is None:
                times.scheduled_s = now - computing_s
        for lifecycle in event.lifecycle:
            self._count_lifecycle(lifecycle)
        self._count_tokens(event, now)
        self._count_drafts(event)
        self._count_state(event)
        self._count_plan(event.plan)

    def request_finished(self, completion: Completion, step: int) -> None:  # noqa: ARG002 (the clock tells)
        """Observe the latencies of a request that ended."""
        times = self._running.pop(completion.request_id)
        times.finished_s = self._clock()
        self.finished.append((completion.request_id, times))
        instruments = self._instruments
        instruments.request_ended(completion.finish_reason.value)
        instruments.request_prompt_tokens.observe(times.prompt_tokens)
        instruments.request_generation_tokens.observe(len(completion.tokens))
        instruments.request_max_tokens.observe(times.max_tokens)
        for histogram, value in (
            (instruments.end_to_end, times.end_to_end_s),
            (instruments.queue_time, times.queue_time_s),
            (instruments.prefill_time, times.prefill_time_s),
            (instruments.decode_time, times.decode_time_s),
            (instruments.inference_time, times.inference_time_s),
            (instruments.time_per_output_token, times.time_per_output_token_s),
        ):
            if value is not None:
                histogram.observe(value)

        if not self._running:
            self._nothing_is_under_way()

    def run_finished(self, ending: RunEnding) -> None:  # noqa: ARG002 (however it ended, it is over)
        """Nothing runs, nothing waits and no block has an owner any more."""
        self._running.clear()
        self._nothing_is_under_way()

    def _nothing_is_under_way(self) -> None:
        """A step tells its state before its requests end, so the last one's would stand for as long as nobody comes."""
        instruments = self._instruments
        for gauge in (instruments.num_requests_running, instruments.num_requests_waiting, instruments.kv_cache_usage):
            gauge.set(0)

    def _count_lifecycle(self, event: LifecycleEvent) -> None:
        times = self._running.get(event.request_id)
        if event.kind == "preempted":
            self._instruments.preemptions.inc()
            if times is not None:
                times.preemptions += 1
        elif event.kind == "admitted" and self._caches_prefixes and times is not None:
            self._instruments.prefix_queries.inc(times.prompt_tokens + times.generation_tokens)
            self._instruments.prefix_hits.inc(event.position)

    def _count_tokens(self, event: StepEvent, now_s: float) -> None:
        instruments = self._instruments
        committed = Counter(row.request_id for row in event.sampled if row.committed)
        for request_id, tokens in committed.items():
            times = self._running[request_id]
            times.committed(tokens, now_s)
            instruments.generation_tokens.inc(tokens)
            if len(times.burst_times_s) == 1:
                instruments.prompt_tokens.inc(times.prompt_tokens)
                instruments.time_to_first_token.observe(now_s - times.queued_s)
            else:
                gap_s = now_s - times.burst_times_s[-2]
                instruments.inter_token_latency.observe(gap_s)
                for _ in range(tokens):
                    instruments.inter_token_latency_per_token.observe(gap_s / tokens)
        for row in event.sampled:
            if row.committed:
                for margin in margins_reached(top_two_gap(event.processed_logits[row.head_row]), self._margins):
                    instruments.near_tie(margin)

    def _count_drafts(self, event: StepEvent) -> None:
        for draft in event.drafts:
            self._instruments.drafts.inc()
            self._instruments.draft_tokens.inc(len(draft.proposed))
            self._instruments.accepted_tokens.inc(draft.accepted_tokens)
            for position in range(draft.accepted_tokens):
                self._instruments.proposal_accepted_at(position)

    def _count_state(self, event: StepEvent) -> None:
        instruments, queue = self._instruments, event.queue
        instruments.num_requests_running.set(queue.running)
        instruments.num_requests_waiting.set(queue.waiting)
        instruments.kv_cache_usage.set(queue.blocks_used / queue.blocks_total if queue.blocks_total else 0.0)
        instruments.iteration_tokens.observe(event.batch.packed_rows)
        instruments.packed_rows.observe(event.batch.packed_rows)
        if event.batch.head_rows:
            instruments.head_rows.observe(event.batch.head_rows)
        timings = event.timings
        for phase, elapsed_s in (
            ("schedule", timings.schedule_s),
            ("draft", timings.draft_s),
            ("forward", timings.forward_s),
            ("sample", timings.sample_s),
        ):
            instruments.phase_took(phase, elapsed_s)

    def _count_plan(self, plan: Plan) -> None:
        linears = [choice for choice in plan if choice.operation != "attention"]
        for (path, site_class), calls in Counter((c.path, site_class_of(c)) for c in linears).items():
            self._instruments.linear_called(path, site_class, calls)
        for path, calls in Counter(c.path for c in plan if c.operation == "attention").items():
            self._instruments.attention_called(path, calls)
        for operation in ("linear", "head"):
            paths = tuple(choice.path for choice in linears if choice.operation == operation)
            before = self._paths.get(operation)
            if paths and before is not None and before != paths:
                self._instruments.threshold_crossed(operation)
            if paths:
                self._paths[operation] = paths


def site_class_of(choice: SiteChoice) -> str:
    """`head`, or the last part of a site's path: `q_proj`, `down_proj`, ..."""
    return "head" if choice.operation == "head" else choice.site.rpartition(".")[2]
