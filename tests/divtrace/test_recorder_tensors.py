"""Level `tensors`: what is asked for, and the ring that a trigger writes out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import mlx.core as mx
import numpy as np
import pytest

from divtrace.errors import TraceError
from divtrace.recorder.recorder import Recorder
from divtrace.recorder.step_flags import StepFlag
from divtrace.recorder.tensors import TensorSettings
from divtrace.trace.check import check_trace
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from divtrace.trace.tensors import read_tensor
from engine.batch import SegmentKind
from engine.observer import LayerRows, MemoryRead, StepEvent
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment


def decoding_run(steps: int) -> TraceBuilder:
    run = TraceBuilder()
    run.request("a", (1,))
    run.step(segment("a", SegmentKind.PREFILL, 0, (1,), chosen=(2,)))
    for position in range(1, steps):
        run.step(segment("a", SegmentKind.DECODE, position, (2,), chosen=(2,)))
    return run


def kept(trace: Trace) -> list[tuple[int, str, str]]:
    steps = trace.column("tensors", "step").tolist()
    names = ("site_string", "trigger_string")
    texts = [[trace.string(index) for index in trace.column("tensors", name)] for name in names]
    return list(zip(steps, *texts, strict=True))


def record(tmp_path: Path, run: TraceBuilder, settings: TensorSettings) -> Trace:
    return open_trace(run.write(tmp_path / "run.h5", Level.TENSORS, tensors=settings))


def test_asked_steps_and_layers_are_kept_byte_for_byte(tmp_path: Path) -> None:
    run = example_run()
    with record(tmp_path, run, TensorSettings(layers=(1,), steps=range(1, 3))) as trace:
        names = ("kv.1.keys", "kv.1.values", "logits")
        assert kept(trace) == [(step, site, "asked") for step in (1, 2) for site in names]
        event = run.events()[2]
        assert event.kv_rows is not None
        assert read_tensor(trace, 3).tobytes() == event.kv_rows[1].keys.tobytes()
        assert read_tensor(trace, 5).shape == event.logits.shape
        assert check_trace(trace) == []


def test_only_steps_of_the_asked_requests_are_kept(tmp_path: Path) -> None:
    settings = TensorSettings(steps=range(10), request_ids=("follower",))
    with record(tmp_path, example_run(), settings) as trace:
        assert [step for step, _, _ in kept(trace)] == [1, 2, 3]


def test_a_small_gap_writes_the_ring_and_nothing_twice(tmp_path: Path) -> None:
    run = decoding_run(8)
    run.runner_up[("a", 5)] = (3, 0.01)
    run.runner_up[("a", 6)] = (3, 0.01)
    with record(tmp_path, run, TensorSettings(ring_steps=2, gap_below=0.1)) as trace:
        assert kept(trace) == [(step, "logits", "gap") for step in (2, 3, 4, 5)]
        assert read_tensor(trace, 2).tobytes() == run.events()[4].logits.tobytes()


def test_without_a_trigger_the_ring_leaves_nothing(tmp_path: Path) -> None:
    with record(tmp_path, decoding_run(5), TensorSettings(ring_steps=2, gap_below=0.1)) as trace:
        assert kept(trace) == []


class Spoiling(Recorder):
    """Changes one step on its way to the trace."""

    def step_finished(self, event: StepEvent) -> None:
        if event.batch.step == 2:
            event = self.spoil(event)
        super().step_finished(event)

    def spoil(self, event: StepEvent) -> StepEvent:
        logits = np.array(event.logits)
        logits[0, 0] = np.inf
        return replace(event, logits=logits, processed_logits=logits)


class SpoilingMemory(Spoiling):
    """Reports memory in which the row of position 0 is not what was written."""

    def spoil(self, event: StepEvent) -> StepEvent:
        rows = np.ones((1, 1, 4), np.float32)
        return replace(event, memory=(MemoryRead("a", (LayerRows(rows, rows), LayerRows(rows, rows))),))


@pytest.mark.parametrize(("recorder", "reason"), [(Spoiling, "not_finite"), (SpoilingMemory, "audit")])
def test_other_triggers_write_the_ring(tmp_path: Path, recorder: type[Recorder], reason: str) -> None:
    settings = TensorSettings(ring_steps=1)
    path = tmp_path / "run.h5"
    decoding_run(5).replay(recorder(path, Level.TENSORS, top_k=4, audit_every=1, tensors=settings))
    with open_trace(path) as trace:
        assert kept(trace) == [(1, "logits", reason), (2, "logits", reason)]
        if reason == "audit":
            assert trace.column("steps", "flags").tolist() == [0, 0, StepFlag.AUDIT_FAILED, 0, 0]
            assert trace.column("audits", "layer").tolist() == [0, 1]


@pytest.mark.parametrize("hash_name", ["xxh3_64", "multilinear_64"])
def test_an_audit_hashes_memory_as_the_rows_were_hashed_at_writing(tmp_path: Path, hash_name: str) -> None:
    run = decoding_run(4)

    class FlippingOneBit(SpoilingMemory):
        def spoil(self, event: StepEvent) -> StepEvent:
            rows = [
                [run.kv_row(("a", position, layer), side) for position in range(2)] for layer in (0, 1) for side in "kv"
            ]
            keys, values, other_keys, other_values = map(np.array, rows)
            other_values.view(np.uint32)[1, 0, 2] ^= 1 << 31
            layers = (LayerRows(keys, values), LayerRows(other_keys, other_values))
            return replace(event, memory=(MemoryRead("a", layers),))

    path = tmp_path / "run.h5"
    run.replay(FlippingOneBit(path, audit_every=1, hash_name=hash_name))
    with open_trace(path) as trace:
        places = zip(*(trace.column("audits", name).tolist() for name in ("position", "layer")), strict=True)
        assert list(places) == [(1, 1)]
        written = trace.column("audits", "expected_hash")
        assert written.tolist() == trace.column("rows", "value_hash")[1:2, 1].tolist()


def test_memory_that_nobody_wrote_is_told_apart(tmp_path: Path) -> None:
    class Unwritten(SpoilingMemory):
        def spoil(self, event: StepEvent) -> StepEvent:
            rows = np.ones((9, 1, 4), np.float32)
            return replace(event, memory=(MemoryRead("a", (LayerRows(rows, rows),)),))

    path = tmp_path / "run.h5"
    decoding_run(4).replay(Unwritten(path, audit_every=1))
    with open_trace(path) as trace:
        kinds = [trace.string(index) for index in trace.column("audits", "kind_string")]
        assert kinds == ["changed"] * 2 + ["never_written"] * 7
        assert trace.column("audits", "expected_hash")[2:].tolist() == [0] * 7


def test_sites_are_asked_of_the_engine_and_bfloat16_keeps_its_bits(tmp_path: Path) -> None:
    class WithTensors(Recorder):
        def step_finished(self, event: StepEvent) -> None:
            array = mx.array([[1.0, -2.5]]).astype(mx.bfloat16)
            super().step_finished(replace(event, tensors={"model.norm": array, "other": array}))

    settings = TensorSettings(sites=("model.norm",), logits=False, steps=range(1))
    recorder = WithTensors(tmp_path / "run.h5", Level.TENSORS, tensors=settings)
    assert recorder.needs.tensor_sites == ("model.norm",)
    decoding_run(2).replay(recorder)
    with open_trace(tmp_path / "run.h5") as trace:
        assert kept(trace) == [(0, "model.norm", "asked")]
        assert read_tensor(trace, 0).tolist() == [[0x3F80, 0xC020]]
        assert trace.string(trace.column("tensors", "dtype_string")[0]) == "bfloat16"


@pytest.mark.parametrize("column", ["tensor_shapes/value", "tensors/dtype_string", "tensors/bytes_count"])
def test_a_tensor_that_does_not_fit_its_bytes_is_refused(tmp_path: Path, column: str) -> None:
    path = example_run().write(tmp_path / "run.h5", Level.TENSORS, tensors=TensorSettings(steps=range(1)))
    with h5py.File(path, "r+") as file:
        file[column][0] = file[column][0] - 1
    with open_trace(path) as trace, pytest.raises(TraceError, match=r"tensors row 0"):
        read_tensor(trace, 0)
    with open_trace(path) as trace, pytest.raises(TraceError, match=r"tensors row 7"):
        read_tensor(trace, 7)
