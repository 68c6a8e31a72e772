"""`divtrace record --level tensors` on the real engine: chosen arrays are there, and a bad choice is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from click.testing import CliRunner

import divtrace
from divtrace.commands.main import cli
from divtrace.errors import DivtraceError
from divtrace.recorder.recorder import Recorder
from divtrace.recorder.tensors import TensorSettings
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from divtrace.trace.tensors import read_tensor
from engine.engine import Engine
from engine.errors import SettingsError
from engine.request import Request
from engine.settings import EngineSettings
from fixtures.tiny_directory import write_tiny_directory
from fixtures.tiny_models import tiny_model

DOWN, HEAD = "model.layers.1.mlp.down_proj", "lm_head"
CASE: dict[str, Any] = {
    "version": 1,
    "requests": [
        {"id": "first", "prompt": "hello hello", "max_tokens": 8, "ignore_eos": True},
        {"id": "late", "prompt": "abc", "max_tokens": 3, "ignore_eos": True, "arrival": {"at_step": 5}},
    ],
    "settings": {"policy": "threshold:4"},
}
ARMS = {"batched": {"max_active": 2}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("model")
    write_tiny_directory(path)
    return str(path)


def kept(trace: Trace, name: str) -> list[str]:
    return [trace.string(index) for index in trace.column("tensors", name)]


def test_the_output_of_a_site_is_what_the_next_one_reads(tmp_path: Path) -> None:
    loaded = tiny_model()
    sites = (DOWN, HEAD)
    recorder = Recorder(tmp_path / "run.h5", Level.TENSORS, tensors=TensorSettings(sites=sites, steps=range(9)))
    with Engine(loaded, EngineSettings(policy="native"), (recorder,)) as engine:
        engine.submit(Request("a", (1, 2, 3), 4, ignore_eos=True))
        engine.run()
    with open_trace(tmp_path / "run.h5") as trace:
        names = kept(trace, "site_string")
        assert names[:3] == [DOWN, HEAD, "logits"]
        heads = [read_tensor(trace, row) for row, name in enumerate(names) if name == HEAD]
        logits = [read_tensor(trace, row) for row, name in enumerate(names) if name == "logits"]
        assert [a.tobytes() for a in heads] == [a.tobytes() for a in logits]
        down = read_tensor(trace, 0)
        assert down.shape == (3, 1, loaded.model.args.hidden_size)
        assert np.isfinite(down).all()
        assert np.abs(down).max() > 0
        assert trace.column("tensors", "step").tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("policy", ["native", "gemv", "gemm", "threshold:4", "invariant"])
def test_keeping_every_site_changes_no_bit_of_the_logits(tmp_path: Path, policy: str) -> None:
    loaded = tiny_model(quantized=True)
    written = []
    for number, sites in enumerate([(), (f"model.layers.{i}.{s}" for i in (0, 1) for s in SITES)]):
        settings = TensorSettings(sites=tuple(sites), steps=range(99))
        recorder = Recorder(tmp_path / f"{number}.h5", Level.TENSORS, tensors=settings)
        with Engine(loaded, EngineSettings(policy=policy), (recorder,)) as engine:
            for index in range(3):
                engine.submit(Request(f"r{index}", (1, 2, 3, index), 6, ignore_eos=True))
            engine.run()
        with open_trace(tmp_path / f"{number}.h5") as trace:
            written.append((trace.column("sampled", "logits_hash").tolist(), trace.column("rows", "digest").tolist()))
    assert written[0] == written[1]


SITES = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip


def test_the_command_keeps_chosen_steps_and_the_ring_of_a_small_gap(tmp_path: Path, model: str) -> None:
    case = tmp_path / "case.json"
    case.write_text(json.dumps({**CASE, "model": model, "arms": ARMS}))
    options = ["--tensor-steps", "1", "--tensor-ring", "2", "--tensor-gap", "1e9", "--tensor-layers", "0"]
    options += ["--tensor-site", DOWN, "--tensor-request", "late"]
    run = CliRunner().invoke(
        cli, ["record", str(case), "-o", str(tmp_path), "--level", "tensors", *options], prog_name="divtrace"
    )
    assert run.exit_code == 0, run.output
    with open_trace(tmp_path / "batched.h5") as trace:
        assert set(kept(trace, "site_string")) == {DOWN, "kv.0.keys", "kv.0.values", "logits"}
        assert set(kept(trace, "trigger_string")) == {"gap"}
        late = trace.request_ids().index("late")
        runs_in = trace.column("segments", "step")[trace.column("segments", "request") == late]
        assert set(trace.column("tensors", "step").tolist()) == set(runs_in.tolist())


@pytest.mark.parametrize(
    ("level", "audit", "tensors", "said"),
    [
        ("tensors", 0, None, "say which"),
        ("tensors", 0, TensorSettings(), "say which"),
        ("kv", 0, TensorSettings(steps=range(2)), "record with --level tensors"),
        ("logits", 2, None, "record with --level kv"),
        ("tensors", 0, TensorSettings(steps=range(2), gap_below=0.1), "add --tensor-ring"),
        ("tensors", 0, TensorSettings(steps=range(2), request_ids=("nobody",)), "has no request 'nobody'"),
        ("tensors", 0, TensorSettings(steps=range(2), layers=(2,)), "the model has layers 0 to 1"),
        ("tensors", 0, TensorSettings(steps=range(2), layers=(-1,)), "the model has layers 0 to 1"),
        ("tensors", 0, TensorSettings(steps=range(2), sites=("model.layers.1.mlp.dwn",)), DOWN),
    ],
)
def test_what_would_not_be_recorded_is_refused(
    tmp_path: Path, model: str, level: str, audit: int, tensors: TensorSettings | None, said: str
) -> None:
    with pytest.raises((DivtraceError, SettingsError), match=said):
        divtrace.record({**CASE, "model": model}, tmp_path, arms=ARMS, level=level, audit=audit, tensors=tensors)
    assert not list(tmp_path.glob("*.h5"))


def test_a_kept_output_belongs_to_its_own_forward() -> None:
    from engine.kernels.dispatch import Dispatcher
    from engine.kernels.policy import KernelPolicy
    from engine.model.site_outputs import SiteOutputs

    outputs = SiteOutputs(Dispatcher(KernelPolicy()))
    outputs.kept["site"] = mx.zeros(1)
    assert list(outputs.take()) == ["site"]
    assert outputs.take() == {}
