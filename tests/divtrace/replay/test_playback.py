"""A run's own schedule plays back bit for bit, whatever happened in it, and says where it cannot be followed."""

from __future__ import annotations

from collections.abc import Sequence
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
from divtrace.replay.schedule import read_run
from divtrace.replay.verify import Reproduction, compare_replay
from divtrace.trace.check import check_trace
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from engine.decide import ForcedTokens
from engine.engine import Engine
from engine.errors import PlaybackError
from engine.model.load import LoadedModel
from engine.request import Arrival, Request, SamplingParams
from engine.scheduling.pinned import PinnedRows, PinnedStep
from engine.settings import DrafterKind, EngineSettings
from fixtures.tiny_models import tiny_model
from tests.properties.test_scheduler import configurations, request_lists


@cache
def model() -> LoadedModel:
    return tiny_model(quantized=True, seed=1)


def prompt(length: int, first: int = 0) -> tuple[int, ...]:
    return tuple((first + 7 * index) % 256 for index in range(length))


def record(path: Path, configuration: EngineSettings, requests: Sequence[Request]) -> None:
    run_recorded(model(), configuration, requests, Recorder(path, level=Level.KV, overwrite=True))


def play(path: Path) -> Reproduction:
    """Play a trace back and compare all that both hold."""
    with open_trace(path) as original:
        output = path.with_suffix(".replay.h5")
        Replayer(original, model()).play(output)
        with open_trace(output) as replayed:
            assert replayed.step_count == original.step_count
            return compare_replay(original, replayed)


def kinds_in(path: Path) -> set[str]:
    """Lifecycle events and segment kinds that a trace holds."""
    with open_trace(path) as trace:
        return {trace.string(int(kind)) for kind in trace.column("events", "kind_string")}


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    return tmp_path / "run.h5"


def test_a_run_with_mixed_batches_plays_back(trace_path: Path) -> None:
    requests = [Request("a", prompt(20), 12), Request("b", prompt(30, 9), 8, arrival=Arrival(0, "a", 2))]
    record(trace_path, EngineSettings(token_budget=16), requests)
    assert play(trace_path).is_equal


def test_a_trace_tells_what_was_pinned_from_what_the_logits_gave(trace_path: Path) -> None:
    record(trace_path, EngineSettings(), [Request("a", prompt(20), 4)])
    pinned = (1, 2, 3, 4)
    with open_trace(trace_path) as trace:
        free = trace.output(0).tolist()
    forced = ForcedTokens({"a": pinned})
    recorder = Recorder(trace_path, overwrite=True)
    run_recorded(model(), EngineSettings(), [Request("a", prompt(20), 4)], recorder, forced=forced)
    with open_trace(trace_path) as trace:
        assert trace.output(0).tolist() == list(pinned)
        assert trace.column("sampled", "committed_token").tolist() == list(pinned)
        assert trace.column("sampled", "chosen").tolist()[0] == free[0] != pinned[0]
        assert check_trace(trace) == []


@pytest.mark.parametrize("hash_name", ["xxh3_64", "multilinear_64"])
def test_a_playback_hashes_rows_as_its_run_did(trace_path: Path, hash_name: str) -> None:
    recorder = Recorder(trace_path, hash_name=hash_name)
    run_recorded(model(), EngineSettings(token_budget=16), [Request("a", prompt(20), 4)], recorder)
    assert play(trace_path).is_equal
    with open_trace(trace_path.with_suffix(".replay.h5")) as replayed:
        assert replayed.header.hash_name == hash_name


def test_a_run_with_preemptions_plays_back(trace_path: Path) -> None:
    crowded = EngineSettings(admission="optimistic", kv_blocks=12, block_size=4, max_active=4)
    record(trace_path, crowded, [Request(name, prompt(8, 20 * i), 16) for i, name in enumerate("abcd")])
    assert "preempted" in kinds_in(trace_path)
    assert play(trace_path).is_equal


def test_a_run_with_evicted_and_reused_prefixes_plays_back(trace_path: Path) -> None:
    shared = EngineSettings(admission="optimistic", kv_blocks=10, block_size=4, max_active=3, prefix_cache=True)
    requests = [
        Request(f"r{i}", prompt(16) + prompt(4, 50 * (i % 3)), 9, arrival=Arrival(at_step=2 * i)) for i in range(7)
    ]
    record(trace_path, shared, requests)
    with open_trace(trace_path) as trace:
        assert trace.length("reused") > 0
    assert "preempted" in kinds_in(trace_path)
    assert play(trace_path).is_equal


@pytest.mark.parametrize("bonus", [True, False])
@pytest.mark.parametrize("drafter", ["prompt-lookup", "self"])
def test_a_speculative_run_plays_back_without_its_drafter(trace_path: Path, drafter: str, bonus: bool) -> None:
    speculation = {"drafter": drafter, "self_layers": 1, "tokens": 3, "bonus": bonus}
    two_words = SamplingParams(logit_bias=((5, 90.0), (6, 90.0)))
    arrival = Arrival(0, "a", 3)
    requests = [Request("a", prompt(12), 20, two_words), Request("b", prompt(9), 14, two_words, arrival=arrival)]
    record(trace_path, EngineSettings(speculation=speculation), requests)
    with open_trace(trace_path) as trace:
        assert trace.length("drafts") > 0
    assert play(trace_path).is_equal


def test_a_run_with_cancellations_plays_back(trace_path: Path) -> None:
    requests = [
        Request("a", prompt(12), 20),
        Request("running", prompt(12, 3), 20, cancel_at_step=5),
        Request("waiting", prompt(12, 5), 20, cancel_at_step=3),
        Request("b", prompt(12, 8), 6),
    ]
    record(trace_path, EngineSettings(max_active=2, kv_blocks=4), requests)
    assert "cancelled" in kinds_in(trace_path)
    assert play(trace_path).is_equal


def test_sampled_runs_play_back(trace_path: Path) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.2, seed=3)
    requests = [Request(name, prompt(9, 30 * i), 10, sampling) for i, name in enumerate("abc")]
    record(trace_path, EngineSettings(), requests)
    assert play(trace_path).is_equal


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """Requests that share prompts, arrive late or after one another, draw their tokens, and are sometimes cancelled."""
    requests: list[Request] = []
    for request in draw(request_lists()):
        arrival = Arrival(draw(st.integers(0, 8)))
        if requests and draw(st.booleans()):
            arrival = Arrival(0, requests[0].id, 1)
        cancelled = bool(requests) and draw(st.integers(0, 3)) == 0
        requests.append(
            replace(
                request,
                arrival=arrival,
                sampling=draw(st.sampled_from([SamplingParams(), SamplingParams(temperature=1.0, seed=2), FOUR_WORDS])),
                cancel_at_step=draw(st.integers(1, 20)) if cancelled else None,
            )
        )
    return requests


FOUR_WORDS = SamplingParams(logit_bias=tuple((token, 90.0) for token in range(4)))
"""Outputs of the prompts' own four tokens, so that prompt lookup finds something."""


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    requests=workloads(),
    configuration=configurations(),
    drafter=st.sampled_from([DrafterKind.PROMPT_LOOKUP, DrafterKind.SELF]),
)
def test_any_run_plays_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    requests: list[Request],
    configuration: EngineSettings,
    drafter: DrafterKind,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.h5"
    changes: dict[str, Any] = {"policy": "threshold:4"}
    if configuration.speculation.drafter is not DrafterKind.NONE:
        changes["speculation"] = configuration.speculation.model_copy(update={"drafter": drafter, "self_layers": 1})
    record(path, configuration.model_copy(update=changes), requests)
    assert play(path).is_equal


def pinned_run(configuration: EngineSettings, requests: Sequence[Request], steps: Sequence[PinnedStep]) -> Engine:
    """Follow pinned steps to their end."""
    with Engine(model(), configuration, pinned=steps) as engine:
        for request in requests:
            engine.submit(replace(request, arrival=Arrival(), cancel_at_step=None))
        engine.run()
        return engine


@pytest.fixture
def recorded(trace_path: Path) -> tuple[EngineSettings, tuple[Request, ...], tuple[PinnedStep, ...]]:
    configuration = EngineSettings(prefix_cache=True, block_size=4, kv_blocks=30, max_active=2)
    requests = [Request("a", prompt(10), 8), Request("b", prompt(10), 8, arrival=Arrival(0, "a", 3))]
    record(trace_path, configuration, requests)
    with open_trace(trace_path) as trace:
        run = read_run(trace)
    return run.settings, run.requests, run.steps


def changed(steps: Sequence[PinnedStep], step: int, row: int, **changes: Any) -> list[PinnedStep]:
    """The steps with one pinned segment changed."""
    rows = list(steps[step].rows)
    rows[row] = replace(rows[row], **changes)
    return [*steps[:step], replace(steps[step], rows=tuple(rows)), *steps[step + 1 :]]


def test_a_followed_schedule_leaves_no_block_behind(recorded: Any) -> None:
    configuration, requests, steps = recorded
    engine = pinned_run(configuration, requests, steps)
    assert engine.store.state().blocks_used == 0
    assert engine.step_number == len(steps)


def test_half_a_schedule_leaves_no_block_behind_either(recorded: Any) -> None:
    configuration, requests, steps = recorded
    engine = pinned_run(configuration, requests, steps[:5])
    assert engine.step_number == 5
    assert engine.store.state().blocks_used == 0


def test_a_position_that_is_not_reached_names_the_step(recorded: Any) -> None:
    configuration, requests, steps = recorded
    wrong = changed(steps, 4, 0, first_position=99)
    with pytest.raises(PlaybackError, match=r"step 4: request 'a' stands at position \d+, .* at 99"):
        pinned_run(configuration, requests, wrong)


def test_more_rows_than_known_tokens_name_the_step(recorded: Any) -> None:
    configuration, requests, steps = recorded
    with pytest.raises(PlaybackError, match=r"step 0: request 'a' knows 10 tokens, .* up to 11"):
        pinned_run(configuration, requests, changed(steps, 0, 0, rows=11))


def test_another_prefix_hit_names_the_step(recorded: Any) -> None:
    configuration, requests, steps = recorded
    cold = configuration.model_copy(update={"prefix_cache": False})
    with pytest.raises(PlaybackError, match=r"step 3: the prefix cache holds 0 tokens of request 'b', .* took 8"):
        pinned_run(cold, requests, steps)


def test_a_smaller_pool_names_the_step(recorded: Any) -> None:
    configuration, requests, steps = recorded
    with pytest.raises(PlaybackError, match=r"step 3: no KV block is free for request 'b'"):
        pinned_run(configuration.model_copy(update={"kv_blocks": 4}), requests, steps)


def test_a_pool_without_room_for_proposals_names_the_step() -> None:
    steps = [
        PinnedStep((PinnedRows("a", 0, 4, 0),)),
        PinnedStep((PinnedRows("a", 4, 1, 0, (1, 2, 3, 4)),)),
    ]
    tight = EngineSettings(block_size=4, kv_blocks=2, speculation={"drafter": "prompt-lookup"})
    with pytest.raises(PlaybackError, match=r"step 1: no KV block is free for request 'a'"):
        pinned_run(tight, [Request("a", prompt(4), 9)], steps)


def test_a_request_that_is_unknown_or_has_ended_names_the_step(recorded: Any) -> None:
    configuration, requests, steps = recorded
    with pytest.raises(PlaybackError, match=r"step 2: request 'nobody' has ended or was never submitted"):
        pinned_run(configuration, requests, changed(steps, 2, 0, request_id="nobody"))
    longer = [*steps, PinnedStep((PinnedRows("a", 17, 1, 0),))]
    with pytest.raises(PlaybackError, match=rf"step {len(steps)}: request 'a' has ended"):
        pinned_run(configuration, requests, longer)
