"""Metrics of a run computed by hand, and of a real one counted another way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from engine.batch import Batch, Segment, SegmentKind
from engine.engine import Engine
from engine.metrics.near_ties import margins_reached, top_two_gap
from engine.metrics.observer import MetricsObserver, site_class_of
from engine.metrics.request_times import RequestTimes
from engine.observer import (
    Draft,
    LifecycleEvent,
    QueueState,
    RunEnding,
    RunInfo,
    SampledRow,
    SiteChoice,
    StepEvent,
    StepTimings,
)
from engine.request import Arrival, Completion, FinishReason, Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model
from tests.engine.collector import Collector

MODEL = {"model_name": "by hand"}


class Clock:
    """Seconds that the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def value(metrics: MetricsObserver, name: str, **labels: str) -> float:
    """A sample of the registry; 0 where nothing was counted."""
    found = metrics.registry.get_sample_value(f"divtrace:{name}", {**MODEL, **labels})
    return 0.0 if found is None else found


def linear(site: str, path: str, rows: int, operation: str = "linear") -> SiteChoice:
    return SiteChoice(site, operation, path, "threshold:4", rows, 8, 8, "float32", 0, 0)


def step(
    number: int,
    segments: Sequence[Segment],
    gaps: Sequence[float] = (),
    committed: Sequence[bool] | None = None,
    **changes: object,
) -> StepEvent:
    """A step whose decided rows have the given gaps between their two best logits."""
    logits = np.zeros((len(gaps), 4), np.float32)
    logits[:, 2] = 1.0
    logits[:, 0] = np.float32(1.0) - np.array(gaps, np.float32)
    owners = [segment for segment in segments for _ in range(segment.wanted_logits)]
    sampled = tuple(
        SampledRow(segment.request_id, 0, 0, row, 2, committed[row] if committed else True)
        for row, segment in enumerate(owners)
    )
    values: dict[str, object] = {
        "batch": Batch(number, tuple(segments)),
        "plan": (),
        "logits": logits,
        "processed_logits": logits,
        "sampled": sampled,
        "kv_rows": None,
        "queue": QueueState(running=1, waiting=0, blocks_used=2, blocks_cached=0, blocks_total=8),
        "timings": StepTimings(0.25, 0.0, 0.5, 0.25),
    } | changes
    return StepEvent(**values)  # type: ignore[arg-type]


def prefill(name: str, rows: int, wanted: int = 1, first_row: int = 0) -> Segment:
    return Segment(name, SegmentKind.PREFILL, 0, tuple(range(rows)), first_row, wanted)


def decode(name: str, position: int, first_row: int = 0) -> Segment:
    return Segment(name, SegmentKind.DECODE, position, (1,), first_row, 1)


def started(clock: Clock, prefix_cache: bool = True) -> MetricsObserver:
    metrics = MetricsObserver(clock=clock)
    settings = {"model": {"source": "by hand"}, "prefix_cache": prefix_cache}
    metrics.run_started(RunInfo(settings, {}, "", "", 1, 1, 1, 4, lambda token: b""))  # noqa: ARG005
    return metrics


def completion(name: str, tokens: int, reason: FinishReason = FinishReason.LENGTH) -> Completion:
    return Completion(name, tuple(range(tokens)), reason, 0.0, 0.0, 0.0, 0.0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def run(clock: Clock) -> MetricsObserver:
    """One request: queued at 100, rows from 103 on, a token at 104, a burst of three at 106, the last one at 107."""
    metrics = started(clock)
    metrics.request_submitted(Request("a", tuple(range(6)), 5), 0)
    clock.now_s = 104.0
    admitted = (LifecycleEvent("admitted", "a", 4),)
    metrics.step_finished(
        step(0, [prefill("a", 2)], [0.05], lifecycle=admitted, timings=StepTimings(0.5, 0, 0.75, 0.25))
    )
    clock.now_s = 106.0
    verify = Segment("a", SegmentKind.VERIFY, 6, (2, 2, 2, 2), 0, 4, proposed_tokens=3)
    draft = Draft("a", 7, (2, 2, 3), 2, 2, "prompt-lookup")
    metrics.step_finished(step(1, [verify], [0.0005, 0.5, 0.5, 0.0], [True, True, True, False], drafts=(draft,)))
    clock.now_s = 107.0
    metrics.step_finished(step(2, [decode("a", 9)], [0.01]))
    clock.now_s = 107.5
    metrics.request_finished(completion("a", 5), 2)
    return metrics


def test_latencies_are_those_of_the_clock(run: MetricsObserver) -> None:
    expected = {
        "time_to_first_token_seconds": (1, 4.0),
        "request_queue_time_seconds": (1, 3.0),
        "request_prefill_time_seconds": (1, 1.0),
        "request_decode_time_seconds": (1, 3.0),
        "request_inference_time_seconds": (1, 4.0),
        "e2e_request_latency_seconds": (1, 7.5),
        "request_time_per_output_token_seconds": (1, 0.75),
    }
    for name, (count, total) in expected.items():
        assert (value(run, name + "_count"), value(run, name + "_sum")) == (count, total), name


def test_a_burst_is_one_gap_for_the_reader_and_several_for_its_tokens(run: MetricsObserver) -> None:
    assert value(run, "inter_token_latency_seconds_count") == 2
    assert value(run, "inter_token_latency_seconds_sum") == 3.0
    assert value(run, "inter_token_latency_per_token_seconds_count") == 4
    assert value(run, "inter_token_latency_per_token_seconds_sum") == pytest.approx(3.0)
    assert value(run, "inter_token_latency_per_token_seconds_bucket", le="1.0") == 4
    assert value(run, "inter_token_latency_seconds_bucket", le="1.0") == 1


def test_tokens_drafts_and_cache_hits_are_counted(run: MetricsObserver) -> None:
    expected = {
        "prompt_tokens_total": 6,
        "generation_tokens_total": 5,
        "prefix_cache_queries_total": 6,
        "prefix_cache_hits_total": 4,
        "spec_decode_num_drafts_total": 1,
        "spec_decode_num_draft_tokens_total": 3,
        "spec_decode_num_accepted_tokens_total": 2,
        "request_prompt_tokens_sum": 6,
        "request_generation_tokens_sum": 5,
        "request_params_max_tokens_sum": 5,
        "iteration_tokens_total_sum": 7,
        "packed_rows_sum": 7,
        "head_rows_sum": 6,
        "packed_rows_count": 3,
    }
    assert {name: value(run, name) for name in expected} == expected
    assert value(run, "request_success_total", finished_reason="length") == 1
    per_position = [
        value(run, "spec_decode_num_accepted_tokens_per_pos_total", position=str(index)) for index in range(3)
    ]
    assert per_position == [1, 1, 0]


def test_near_ties_are_counted_up_to_each_margin_and_only_where_committed(run: MetricsObserver) -> None:
    counts = [value(run, "near_tie_decisions_total", margin_le=margin) for margin in ("0.001", "0.01", "0.1")]
    assert counts == [1, 2, 3], "gaps 0.0005, 0.01 and 0.05; the gap of 0 was never committed"


def test_the_pool_and_the_queue_are_gauges(clock: Clock) -> None:
    metrics = started(clock)
    metrics.request_submitted(Request("a", (1, 2), 5), 0)
    queue = QueueState(running=3, waiting=9, blocks_used=2, blocks_cached=1, blocks_total=8)
    preempted = (LifecycleEvent("preempted", "a", 2),)
    metrics.step_finished(step(0, [prefill("a", 2)], [1.0], queue=queue, lifecycle=preempted))
    gauges = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "num_preemptions_total")
    assert [value(metrics, name) for name in gauges] == [3, 9, 0.25, 1]


GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@pytest.mark.parametrize("ending", [RunEnding(), RunEnding(interrupted=True), RunEnding(failure="it broke.")])
def test_gauges_are_zero_after_the_run_however_it_ended(clock: Clock, ending: RunEnding) -> None:
    metrics = started(clock)
    metrics.request_submitted(Request("a", (1, 2), 5), 0)
    metrics.step_finished(step(0, [prefill("a", 2)], [1.0], queue=QueueState(3, 9, 2, 1, 8)))
    assert [value(metrics, name) for name in GAUGES] == [3, 9, 0.25]
    metrics.run_finished(ending)
    assert [value(metrics, name) for name in GAUGES] == [0, 0, 0]


def test_gauges_are_zero_while_an_open_engine_has_nothing_to_do() -> None:
    metrics = MetricsObserver()
    with Engine(tiny_model(), EngineSettings(policy="gemv", kv_blocks=8), (metrics,)) as engine:
        model = {"model_name": engine.loaded.source}
        for request_id in "ab":
            engine.submit(Request(request_id, (1, 2, 3), 4, ignore_eos=True))
            engine.step()
            seen = [metrics.registry.get_sample_value(f"divtrace:{name}", model) for name in GAUGES]
            assert seen == [1, 0, 1 / 8]
            engine.run()
            seen = [metrics.registry.get_sample_value(f"divtrace:{name}", model) for name in GAUGES]
            assert seen == [0, 0, 0]


def test_a_store_without_blocks_uses_nothing(clock: Clock) -> None:
    metrics = started(clock)
    metrics.request_submitted(Request("a", (1, 2), 5), 0)
    metrics.step_finished(step(0, [prefill("a", 2)], [1.0], queue=QueueState(1, 0, 0, 0, 0)))
    assert value(metrics, "kv_cache_usage_perc") == 0.0


def test_without_a_prefix_cache_no_query_is_counted(clock: Clock) -> None:
    metrics = started(clock, prefix_cache=False)
    metrics.request_submitted(Request("a", (1, 2), 5), 0)
    metrics.step_finished(step(0, [prefill("a", 2)], [1.0], lifecycle=(LifecycleEvent("admitted", "a", 0),)))
    assert value(metrics, "prefix_cache_queries_total") == 0


def test_linear_calls_are_counted_by_path_and_class_and_crossings_by_step(clock: Clock) -> None:
    metrics = started(clock)
    metrics.request_submitted(Request("a", (1, 2), 5), 0)
    layers = "model.layers.{}.mlp.up_proj"
    for number, (path, head_path) in enumerate(
        [("gemm", "gemv"), ("gemv", "gemv"), ("gemv", "gemv"), ("gemm", "gemm")]
    ):
        plan = (
            linear(layers.format(0), path, 5),
            SiteChoice("x.self_attn", "attention", "segment", "", 5, 8, 8, "float32", 0, 0),
            linear(layers.format(1), path, 5),
            linear("model.embed_tokens", head_path, 1, "head"),
        )
        metrics.step_finished(step(number, [decode("a", 2 + number)], [1.0], plan=plan))
    assert value(metrics, "linear_calls_total", path="gemm", site_class="up_proj") == 4
    assert value(metrics, "linear_calls_total", path="gemv", site_class="up_proj") == 4
    assert value(metrics, "linear_calls_total", path="gemv", site_class="head") == 3
    assert value(metrics, "attention_calls_total", path="segment") == 4
    assert value(metrics, "row_threshold_crossings_total", operation="linear") == 2
    assert value(metrics, "row_threshold_crossings_total", operation="head") == 1


def test_a_real_run_is_counted_like_its_events() -> None:
    metrics, collector = MetricsObserver(), Collector()
    words = SamplingParams(logit_bias=((5, 90.0), (6, 90.0)))
    prompt = tuple(range(40))
    settings = EngineSettings(
        admission="optimistic",
        kv_blocks=12,
        block_size=4,
        prefix_cache=True,
        speculation={"drafter": "prompt-lookup"},
    )
    with Engine(tiny_model(), settings, (metrics, collector)) as engine:
        for index in range(4):
            arrival = Arrival(at_step=index)
            engine.submit(Request(f"r{index}", prompt[:12] + prompt[20 + index : 30], 14, words, arrival=arrival))
        engine.submit(Request("big", prompt, 60))
        engine.submit(Request("cancelled", prompt[7:30], 9, arrival=Arrival(at_step=900)))
        engine.step()
        engine.cancel("cancelled")
        engine.run()
    labels = {"model_name": engine.loaded.source}

    def total(name: str, **more: str) -> float:
        return metrics.registry.get_sample_value(f"divtrace:{name}", labels | more) or 0.0

    events = collector.events
    assert total("packed_rows_sum") == sum(e.batch.packed_rows for e in events)
    assert total("generation_tokens_total") == sum(len(c.tokens) for c in engine.completions.values())
    assert total("num_preemptions_total") == sum(x.kind == "preempted" for e in events for x in e.lifecycle) > 0
    assert total("prefix_cache_hits_total") == sum(len(e.reused) for e in events) > 0
    assert total("spec_decode_num_draft_tokens_total") == sum(len(d.proposed) for e in events for d in e.drafts) > 0
    calls = Counter((c.path, site_class_of(c)) for e in events for c in e.plan if c.operation != "attention")
    for (path, site_class), count in calls.items():
        assert total("linear_calls_total", path=path, site_class=site_class) == count
    reasons = Counter(c.finish_reason.value for c in engine.completions.values())
    assert reasons == {"length": 4, "refused": 1, "cancelled": 1}
    for reason, count in reasons.items():
        assert total("request_success_total", finished_reason=reason) == count
    times = dict(metrics.finished)
    for name in ("r0", "r1", "r2", "r3"):
        done = engine.completions[name]
        assert times[name].generation_tokens == len(done.tokens)
        assert times[name].time_to_first_token_s is not None
        assert 0 < times[name].time_to_first_token_s <= (times[name].end_to_end_s or 0)
    assert times["big"].time_to_first_token_s is None


def test_the_text_format_names_vllms_suffixes(run: MetricsObserver) -> None:
    text = run.render().decode()
    for suffix in ("num_requests_running", "kv_cache_usage_perc", "time_to_first_token_seconds_bucket"):
        assert f"divtrace:{suffix}{{" in text


def test_two_observers_do_not_share_counts(clock: Clock) -> None:
    first, second = started(clock), started(clock)
    first.request_submitted(Request("a", (1, 2), 5), 0)
    first.step_finished(step(0, [prefill("a", 2)], [1.0]))
    assert (value(first, "generation_tokens_total"), value(second, "generation_tokens_total")) == (1, 0)


def test_the_gap_is_between_the_two_best_wherever_they_stand() -> None:
    assert top_two_gap(np.array([1.0, 4.0, 3.5], np.float32)) == 0.5
    assert top_two_gap(np.array([4.0, 1.0, 3.5], np.float32)) == 0.5
    assert top_two_gap(np.array([3.5, 1.0, 4.0], np.float32)) == 0.5
    assert top_two_gap(np.array([2.0, 2.0], np.float32)) == 0.0
    assert top_two_gap(np.array([2.0, -np.inf], np.float32)) == np.inf
    assert top_two_gap(np.array([2.0], np.float32)) == np.inf
    assert margins_reached(0.01, (0.001, 0.01, 0.1)) == [0.01, 0.1]


def test_times_that_were_not_reached_are_none() -> None:
    times = RequestTimes(prompt_tokens=3, max_tokens=4, queued_s=1.0)
    assert times.time_to_first_token_s is times.queue_time_s is times.end_to_end_s is times.decode_time_s is None
    assert times.prefill_time_s is times.inference_time_s is times.time_per_output_token_s is None
    assert times.burst_gaps_s == times.token_gaps_s == []
    times.committed(1, 3.0)
    times.committed(2, 4.0)
    assert times.burst_gaps_s == [1.0]
    assert times.token_gaps_s == [0.5, 0.5]
