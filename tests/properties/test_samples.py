"""Samples of one prompt share its K/V to the last row, and every bit of them is what it is without sharing."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divtrace.recorder.recorder import Recorder
from divtrace.recording import run_recorded
from divtrace.replay.replay import Replayer
from divtrace.replay.verify import compare_replay
from divtrace.trace.check import check_trace
from divtrace.trace.reader import open_trace
from engine.model.load import LoadedModel
from engine.request import Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model
from tests.engine.collector import Collector, collect

LONGEST = 40


@cache
def model() -> LoadedModel:
    return tiny_model("llama", quantized=True)


@st.composite
def samples(draw: st.DrawFn) -> list[Request]:
    """One prompt, two to four samples; perhaps a stranger in between."""
    prompt = tuple(draw(st.lists(st.integers(0, 255), min_size=1, max_size=LONGEST)))
    sampling = SamplingParams(temperature=draw(st.sampled_from([0.0, 1.0])), seed=draw(st.integers(0, 3)))
    first = Request("s/0", prompt, draw(st.integers(1, 10)), sampling, ignore_eos=True)
    requests = [first]
    for index in range(1, draw(st.integers(2, 4))):
        requests.append(replace(first, id=f"s/{index}", sample_of="s/0", max_tokens=draw(st.integers(1, 10))))
    if draw(st.booleans()):
        requests.insert(draw(st.integers(0, len(requests))), Request("other", tuple(range(7, 30)), 5, ignore_eos=True))
    return requests


@st.composite
def sharing(draw: st.DrawFn) -> dict[str, Any]:
    """Settings under which prompts are shared; the pool is often short."""
    block_size = draw(st.sampled_from([4, 16]))
    fewest = -(-(LONGEST + 10) // block_size)
    values: dict[str, Any] = {
        "max_active": draw(st.integers(1, 4)),
        "token_budget": draw(st.integers(3, 64)),
        "admission": draw(st.sampled_from(["reserve", "optimistic", "static"])),
        "scheduling": draw(st.sampled_from(["fcfs", "round-robin", "longest-cached-prefix"])),
        "block_size": block_size,
        "kv_blocks": draw(st.integers(fewest, 4 * fewest)),
        "max_model_length": 128,
    }
    if draw(st.booleans()):
        values["speculation"] = {"drafter": draw(st.sampled_from(["prompt-lookup", "self"])), "self_layers": 1}
    return values


def run(requests: list[Request], policy: str, shared: bool, values: dict[str, Any]) -> Collector:
    chosen = EngineSettings.model_validate({"policy": policy, "prefix_cache": shared, "audit_every": 1} | values)
    return collect(model(), chosen, requests)


@pytest.mark.parametrize("policy", ["gemv", "invariant"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=samples(), values=sharing())
def test_samples_have_the_bits_that_they_have_without_sharing(
    policy: str, requests: list[Request], values: dict[str, Any]
) -> None:
    together, apart = (run(requests, policy, shared, values) for shared in (True, False))
    for request in requests:
        assert together.of_request(request) == apart.of_request(request)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(prompt_tokens=st.integers(1, LONGEST), count=st.integers(2, 4), block_size=st.sampled_from([1, 4, 16]))
def test_a_prompt_is_computed_once_and_one_token_more_for_each_further_sample(
    prompt_tokens: int, count: int, block_size: int
) -> None:
    first = Request("s/0", tuple(range(prompt_tokens)), 6, ignore_eos=True)
    requests = [first, *(replace(first, id=f"s/{index}", sample_of="s/0") for index in range(1, count))]
    seen = run(requests, "gemv", True, {"block_size": block_size, "max_model_length": 64, "max_active": 4})
    computed = sum(segment.rows for e in seen.events for segment in e.batch.segments if segment.kind == "prefill")
    assert computed == prompt_tokens + count - 1
    assert all(row.writer_request_id == "s/0" for e in seen.events for row in e.reused)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(requests=samples(), values=sharing())
def test_a_run_with_samples_is_sound_in_its_trace_and_plays_back(
    tmp_path_factory: pytest.TempPathFactory, requests: list[Request], values: dict[str, Any]
) -> None:
    path: Path = tmp_path_factory.mktemp("run") / "run.h5"
    chosen = EngineSettings.model_validate({"policy": "threshold:4", "prefix_cache": True} | values)
    run_recorded(model(), chosen, requests, Recorder(path, audit_every=1))
    with open_trace(path) as original:
        assert check_trace(original) == []
        output = path.with_suffix(".replay.h5")
        Replayer(original, model()).play(output)
        with open_trace(output) as replayed:
            assert compare_replay(original, replayed).is_equal


def test_a_request_with_another_prompt_is_not_taken_for_a_sample() -> None:
    first = Request("a", tuple(range(20)), 6, ignore_eos=True)
    other = Request("b", tuple(range(1, 21)), 6, ignore_eos=True, sample_of="a")
    gone = Request("c", first.prompt, 6, ignore_eos=True, sample_of="nobody")
    seen = run([first, other, gone], "gemv", True, {"max_model_length": 64})
    assert all(row.request_id == "c" for e in seen.events for row in e.reused)
    assert seen.of_request(other) == run([other], "gemv", False, {"max_model_length": 64}).of_request(other)
