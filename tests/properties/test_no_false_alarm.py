"""Pairs without a fault: under forced GEMV nothing may be seen, whatever was scheduled, cached, preempted, drafted."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import Outcome
from divtrace.recorder.recorder import Recorder
from divtrace.recording import run_recorded
from divtrace.trace.reader import open_trace
from divtrace.verdict.blame import blame
from divtrace.verdict.records import Verdict
from engine.model.load import LoadedModel
from engine.request import Arrival, Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model

PAIRS = {("llama", False): 70, ("qwen3", False): 70, ("qwen2", True): 60}
LONGEST_PROMPT, MOST_TOKENS = 48, 14


@cache
def model(architecture: str, quantized: bool) -> LoadedModel:
    return tiny_model(architecture, quantized=quantized)


samplings = st.one_of(
    st.just(SamplingParams()),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.8]),
        top_k=st.sampled_from([0, 6]),
        top_p=st.sampled_from([1.0, 0.9]),
        repetition_penalty=st.sampled_from([1.0, 1.3]),
        frequency_penalty=st.sampled_from([0.0, 0.4]),
        seed=st.integers(0, 2),
    ),
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """One to four requests with a stem in common, which arrive at a step or behind another's tokens."""
    stem = tuple(draw(st.lists(st.integers(0, 255), min_size=1, max_size=32)))
    requests: list[Request] = []
    for index in range(draw(st.integers(1, 4))):
        own = tuple(draw(st.lists(st.integers(0, 255), min_size=1, max_size=16)))
        behind = Arrival(0, draw(st.sampled_from([r.id for r in requests])), 1) if requests else Arrival()
        arrival = draw(st.sampled_from([behind, Arrival(index)]))
        prompt = draw(st.sampled_from([stem + own, own, own * 3]))[:LONGEST_PROMPT]
        tokens = draw(st.integers(2, MOST_TOKENS))
        requests.append(Request(f"r{index}", prompt, tokens, draw(samplings), ignore_eos=True, arrival=arrival))
    return requests


@st.composite
def configurations(draw: st.DrawFn) -> EngineSettings:
    """Everything that may not change a bit: limits, budgets, chunks, memory, prefix cache, preemption, speculation."""
    block_size = draw(st.sampled_from([4, 16]))
    fewest = -(-(LONGEST_PROMPT + MOST_TOKENS) // block_size)
    paged = draw(st.sampled_from([True, True, False]))
    speculation = {"tokens": draw(st.integers(1, 4)), "bonus": draw(st.booleans()), "self_layers": 1}
    values: dict[str, Any] = {
        "policy": "gemv",
        "max_active": draw(st.integers(1, 4)),
        "token_budget": draw(st.integers(4, 64)),
        "long_prefill_threshold": draw(st.sampled_from([0, 0, 5])),
        "scheduling": draw(st.sampled_from(["fcfs", "shortest-prefill", "round-robin"])),
        "admission": draw(st.sampled_from(["reserve", "optimistic", "optimistic", "static"])),
        "kv": "paged" if paged else "contiguous",
        "block_size": block_size,
        "kv_blocks": draw(st.integers(fewest, 2 * fewest)) if paged else None,
        "max_model_length": 128,
        "prefix_cache": paged and draw(st.booleans()),
    }
    drafter = draw(st.sampled_from(["none", "prompt-lookup", "self"]))
    return EngineSettings(**values, speculation={"drafter": drafter, **speculation})


def record(
    architecture: str, quantized: bool, configuration: EngineSettings, requests: list[Request], path: Path, audit: int
) -> None:
    recorder = Recorder(path, overwrite=True, audit_every=audit)
    run_recorded(model(architecture, quantized), configuration, requests, recorder)


@pytest.mark.parametrize(("architecture", "quantized"), PAIRS)
def test_a_pair_without_a_fault_raises_no_alarm(architecture: str, quantized: bool) -> None:
    @settings(max_examples=PAIRS[architecture, quantized], deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(requests=workloads(), a=configurations(), b=configurations(), audit=st.sampled_from([0, 1, 3]))
    def pair(requests: list[Request], a: EngineSettings, b: EngineSettings, audit: int) -> None:
        with TemporaryDirectory(prefix="pair-") as folder:
            paths = Path(folder) / "a.h5", Path(folder) / "b.h5"
            for configuration, path in zip((a, b), paths, strict=True):
                record(architecture, quantized, configuration, requests, path, audit)
            with open_trace(paths[0]) as left, open_trace(paths[1]) as right:
                found = diff_traces(left, right)
                if found.outcome is Outcome.NOTHING_COMPARED:
                    return
                assert found.exit_status == 0
                answer = blame(left, right)
                assert (answer.verdict, answer.exit_status) == (Verdict.NONE_SEEN, 0)
                assert (left.length("audits"), right.length("audits")) == (0, 0)

    pair()
