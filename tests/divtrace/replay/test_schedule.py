"""What a trace says about its run is read, or refused in one sentence; it is never believed and then crashed on."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from divtrace.errors import EvidenceError, TraceError
from divtrace.replay.replay import Replayer
from divtrace.replay.schedule import read_run
from divtrace.replay.verify import compare_replay
from divtrace.trace.reader import Trace, open_trace
from engine.kernels.policy import SiteOverride
from engine.request import SamplingParams
from tests.divtrace.proof.pairs import handoff, model, record


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("run") / "run.h5", handoff(168, 6))


class Altered:
    """A trace whose header or request settings say something else."""

    def __init__(self, trace: Trace, settings: Any = None, request_settings: str | None = None) -> None:
        self._trace = trace
        self.header = trace.header if settings is None else replace(trace.header, settings=settings)
        self._request_settings = request_settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trace, name)

    def string(self, index: int) -> str:
        if self._request_settings is not None and index in self._trace.column("requests", "settings_string").tolist():
            return self._request_settings
        return self._trace.string(index)


def test_a_run_is_read_as_it_was(path: Path) -> None:
    with open_trace(path) as trace:
        run = read_run(trace)
        assert [request.id for request in run.requests] == ["anchor", "follower"]
        assert len(run.steps) == trace.step_count
        assert run.settings.policy == "threshold:4"
        assert run.requests[0].sampling == SamplingParams()
        assert run.forced.at("anchor", 0) == int(trace.output(0)[0])
        assert sum(rows.rows for step in run.steps for rows in step.rows) == trace.length("rows")


def test_sampling_comes_back_with_its_bias(tmp_path: Path) -> None:
    sampling = SamplingParams(temperature=0.5, seed=3, repetition_penalty=1.1, logit_bias=((7, -1.5), (9, 2.0)))
    requests = [replace(request, sampling=sampling) for request in handoff(168, 3)]
    with open_trace(record(tmp_path / "run.h5", requests)) as trace:
        assert read_run(trace).requests[0].sampling == sampling


@pytest.mark.parametrize(
    "change",
    [
        {"policy": "fastest"},
        {"max_active": "many"},
        {"max_active": -1},
        {"kv_blocks": [1]},
        {"speculation": {"self_layers": None}},
        {"speculation": 7},
        {"unheard_of": 1},
        {"site_policies": "all"},
    ],
)
def test_settings_that_make_no_sense_are_a_damaged_trace(path: Path, change: dict[str, Any]) -> None:
    with open_trace(path) as trace:
        altered: Any = Altered(trace, dict(trace.header.settings) | change)
        with pytest.raises(TraceError, match="record the run again"):
            read_run(altered)


@pytest.mark.parametrize("overrides", ["all", [{"step": 1}], [{"step": "x", "site": "a", "path": "b"}], 3])
def test_overrides_that_make_no_sense_are_a_damaged_trace(path: Path, overrides: Any) -> None:
    with open_trace(path) as trace:
        altered: Any = Altered(trace, dict(trace.header.settings) | {"overrides": overrides})
        with pytest.raises(TraceError, match="overrides"):
            read_run(altered)


def test_a_trace_without_settings_says_what_to_do(path: Path) -> None:
    with open_trace(path) as trace:
        foreign: Any = Altered(trace, {})
        with pytest.raises(EvidenceError, match="record it with divtrace"):
            read_run(foreign)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "{",
        "{}",
        json.dumps({"max_tokens": "many"}),
        json.dumps({"max_tokens": None}),
        json.dumps({"max_tokens": 4, "sampling": 3}),
        json.dumps({"max_tokens": 4, "sampling": {"temperature": "hot"}}),
        json.dumps({"max_tokens": 4, "sampling": {"logit_bias": [[1]]}}),
        json.dumps({"max_tokens": 4, "stop_token_ids": 5}),
        json.dumps({"max_tokens": 4, "stop_token_ids": ["x"]}),
        json.dumps({"max_tokens": 4, "priority": {}}),
    ],
)
def test_request_settings_that_make_no_sense_are_a_damaged_trace(path: Path, text: str) -> None:
    with open_trace(path) as trace:
        altered: Any = Altered(trace, request_settings=text)
        with pytest.raises(TraceError, match="anchor"):
            read_run(altered)


def test_a_run_with_paths_of_its_own_is_played_back_with_them(tmp_path: Path) -> None:
    pinned = (SiteOverride(2, "model.layers.0.mlp.*", "gemm-f16-operands"),)
    path = record(tmp_path / "run.h5", handoff(168, 6), overrides=pinned)
    with open_trace(path) as trace:
        player = Replayer(trace, model())
        assert player.run.overrides[:1] == pinned
        player.play(tmp_path / "again.h5")
        with open_trace(tmp_path / "again.h5") as again:
            assert compare_replay(trace, again).is_equal
        object.__setattr__(player, "run", replace(player.run, overrides=()))
        player.play(tmp_path / "without.h5")
        with open_trace(tmp_path / "without.h5") as without:
            assert compare_replay(trace, without).first_step == 2
