"""The recorder beside the real engine: its traces are sound, and recording changes no bit of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from divtrace.recorder.hashing import as_numpy
from divtrace.recorder.multilinear import multilinear_hashes
from divtrace.recorder.recorder import Recorder
from divtrace.recorder.tensors import TensorSettings
from divtrace.trace.check import check_trace
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from engine.engine import Engine
from engine.model.load import LoadedModel
from engine.observer import Observer, ObserverNeeds, RunEnding, RunInfo, StepEvent
from engine.request import Arrival, Completion, Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model


@cache
def model(quantized: bool, dtype: str = "float32") -> LoadedModel:
    return tiny_model(quantized=quantized, dtype=dtype)


@dataclass
class LogitsWatch:
    """Keeps the bytes of every step's logits and asks the engine for nothing."""

    logits: list[bytes] = field(default_factory=list)
    outputs: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def needs(self) -> ObserverNeeds:
        return ObserverNeeds()

    def run_started(self, info: RunInfo) -> None:
        pass

    def request_submitted(self, request: Request, step: int) -> None:
        pass

    def step_finished(self, event: StepEvent) -> None:
        self.logits.append(event.logits.tobytes())

    def request_finished(self, completion: Completion, step: int) -> None:
        self.outputs[completion.request_id] = completion.tokens

    def run_finished(self, ending: RunEnding) -> None:
        pass


def requests() -> list[Request]:
    """Shared prefixes, a late arrival, a sampled and a penalized request, one cancelled."""
    stem = tuple((7 * index) % 256 for index in range(20))
    return [
        Request("greedy", (*stem, 1, 2, 3), 14),
        Request("repeats", (5, 6, 7, 8) * 6, 12, SamplingParams(logit_bias=((5, 50.0),))),
        Request("sampled", (*stem, 9), 10, SamplingParams(temperature=0.8, top_p=0.9, seed=3)),
        Request("penalized", stem[:7], 10, SamplingParams(repetition_penalty=1.3), arrival=Arrival(at_step=2)),
        Request("follower", (*stem, 1, 2, 3, 4), 8, arrival=Arrival(after_request="greedy", after_tokens=2)),
        Request("cancelled", stem[:5], 30, cancel_at_step=6),
    ]


def serve(settings: dict[str, Any], quantized: bool, *observers: Observer, dtype: str = "float32") -> LogitsWatch:
    watch = LogitsWatch()
    with Engine(model(quantized, dtype), EngineSettings(**settings), (watch, *observers)) as engine:
        for request in requests():
            engine.submit(request)
        engine.run()
    return watch


POOL = {"kv_blocks": 9, "block_size": 8, "admission": "optimistic", "max_active": 4}
SITUATIONS: dict[str, dict[str, Any]] = {
    "native": {"policy": "native"},
    "gemv": {"policy": "gemv"},
    "threshold": {"policy": "threshold:4"},
    "tile": {"policy": "tile:8"},
    "invariant": {"policy": "invariant"},
    "contiguous": {"policy": "threshold:4", "kv": "contiguous"},
    "chunked": {"policy": "threshold:4", "token_budget": 9},
    "prefix cache": {"policy": "threshold:4", "prefix_cache": True, "block_size": 4},
    "preemption": {"policy": "threshold:4", **POOL},
    "preemption and prefix cache": {"policy": "threshold:4", "prefix_cache": True, **POOL},
    "prompt lookup": {"policy": "threshold:4", "speculation": {"drafter": "prompt-lookup"}},
    "no bonus": {"policy": "threshold:4", "speculation": {"drafter": "prompt-lookup", "bonus": False}},
    "self draft": {"policy": "threshold:4", "speculation": {"drafter": "self", "self_layers": 1}},
    "self draft, preemption": {"policy": "gemv", **POOL, "speculation": {"drafter": "self", "self_layers": 1}},
}


@pytest.mark.parametrize("quantized", [False, True], ids=["dense", "quantized"])
@pytest.mark.parametrize("situation", SITUATIONS)
def test_recording_changes_no_bit_and_the_trace_is_sound(tmp_path: Path, situation: str, quantized: bool) -> None:
    settings = SITUATIONS[situation]
    alone = serve(settings, quantized)
    tensors = TensorSettings(layers=(0,), ring_steps=4, gap_below=0.5)
    recorder = Recorder(tmp_path / "run.h5", Level.TENSORS, audit_every=3, tensors=tensors)
    recorded = serve(settings, quantized, recorder)
    assert recorded.logits == alone.logits
    assert recorded.outputs == alone.outputs
    with open_trace(tmp_path / "run.h5") as trace:
        assert [str(finding) for finding in check_trace(trace)] == []
        assert trace.length("audits") == 0
        assert {i: tuple(trace.output(n)) for n, i in enumerate(trace.request_ids())} == alone.outputs
        assert_shows_its_situation(trace, situation)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("situation", ["native", "contiguous", "preemption and prefix cache", "self draft"])
def test_hashing_in_the_graph_changes_no_bit_and_gives_the_hashes_of_the_bytes(
    tmp_path: Path, situation: str, dtype: str
) -> None:
    settings = SITUATIONS[situation]
    alone = serve(settings, False, dtype=dtype)
    recorder = RowBytes(tmp_path / "run.h5", audit_every=2, hash_name="multilinear_64")
    assert serve(settings, False, recorder, dtype=dtype).logits == alone.logits
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.header.hash_name == "multilinear_64"
        assert [str(finding) for finding in check_trace(trace)] == []
        assert trace.length("audits") == 0
        for column, hashes in (("key_hash", recorder.keys), ("value_hash", recorder.values)):
            assert trace.column("rows", column).tobytes() == np.concatenate(hashes).tobytes()
        if situation == "self draft":
            assert trace.length("draft_layers") > 0


class RowBytes(Recorder):
    """Hashes the bytes of all rows on the host too: (rows, layers) uint64 a step."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, Level.KV, **settings)
        self.keys: list[npt.NDArray[np.uint64]] = []
        self.values: list[npt.NDArray[np.uint64]] = []

    def step_finished(self, event: StepEvent) -> None:
        super().step_finished(event)
        for kept, side in ((self.keys, "keys"), (self.values, "values")):
            layers = [multilinear_hashes(as_numpy(getattr(rows, side))) for rows in event.kv_rows or ()]
            kept.append(np.stack(layers, axis=1))


def assert_shows_its_situation(trace: Trace, situation: str) -> None:
    kinds = [trace.string(index) for index in trace.column("events", "kind_string")]
    assert "cancelled" in kinds
    assert ("preempted" in kinds) == ("preemption" in situation)
    assert (trace.length("reused") > 0) == ("prefix cache" in situation)
    assert (trace.length("draft_rows") > 0) == ("self draft" in situation)
    if situation in ("prompt lookup", "no bonus"):
        assert trace.column("drafts", "accepted_tokens").sum() > 0
    assert trace.length("tensors") > 0


@pytest.mark.parametrize("level", [Level.TOKENS, Level.LOGITS, Level.KV])
def test_every_level_leaves_the_run_alone(tmp_path: Path, level: Level) -> None:
    settings = SITUATIONS["threshold"]
    recorder = Recorder(tmp_path / "run.h5", level)
    assert serve(settings, False, recorder).logits == serve(settings, False).logits
    with open_trace(tmp_path / "run.h5") as trace:
        assert check_trace(trace) == []


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_request_cancelled_before_it_arrived_is_part_of_the_record(tmp_path: Path, steps_before: int) -> None:
    recorder = Recorder(tmp_path / "run.h5", Level.TOKENS)
    with Engine(model(False), EngineSettings(policy="gemv"), (recorder,)) as engine:
        engine.submit(Request("early", (1, 2, 3), 4))
        engine.submit(Request("never", (4, 5), 4, arrival=Arrival(at_step=50)))
        for _ in range(steps_before):
            engine.step()
        engine.cancel("never")
        engine.run()
    with open_trace(tmp_path / "run.h5") as trace:
        assert check_trace(trace) == []
        never = trace.request_ids().index("never")
        row = trace.column("completions", "request").tolist().index(never)
        assert trace.string(trace.column("completions", "reason_string")[row]) == "cancelled"
        assert trace.prompt(never).tolist() == [4, 5]
        assert trace.output(never).tolist() == []
        kinds = [trace.string(kind) for kind in trace.column("events", "kind_string")]
        assert kinds.count("cancelled") == 1
