"""The command's options on a tiny model in a file: exit codes, JSON, the argument, a second recording."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from divtrace.commands.main import run
from fixtures.tiny_gguf import write_tiny_gguf
from tests.divtrace.proof.pairs import prompt


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    write_tiny_gguf(folder / "tiny.gguf", "llama", storage="Q4_1")
    follower = {"id": "follower", "prompt_tokens": list(range(60, 84)), "max_tokens": 4, "ignore_eos": True}
    document = {
        "version": 1,
        "model": str(folder / "tiny.gguf"),
        "requests": [
            {"id": "anchor", "prompt_tokens": list(prompt(0)), "max_tokens": 12, "ignore_eos": True},
            follower | {"arrival": {"after": {"request": "anchor", "tokens": 1}}},
        ],
        "settings": {"policy": "threshold:4", "kv_blocks": 32},
        "arms": {"serial": {"max_active": 1}, "batched": {"max_active": 2}},
    }
    workload = folder / "workload.yaml"
    workload.write_text(yaml.safe_dump(document))
    assert run(["record", str(workload), "-o", str(folder / "first")]) == 0
    assert run(["record", str(workload), "-o", str(folder / "second"), "--arm", "serial"]) == 0
    return folder / "first" / "serial.h5", folder / "first" / "batched.h5"


def test_every_option_at_once_in_json(
    traces: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    again = traces[0].parent.parent / "second" / "serial.h5"
    options = ["--reference", "--past-flip", "3", "--check-recording", "--work", str(tmp_path), "--json"]
    capfd.readouterr()
    assert run(["blame", *map(str, traces), "--request", "anchor", "--again", str(again), *options]) == 1
    answer = json.loads(capfd.readouterr().out)
    assert (answer["verdict"], answer["confidence"]) == ("kernel path", "proven")
    assert [control["holds"] for control in answer["controls"]] == [True] * 6
    assert answer["reference"]["agrees_with"] in ("A", "B", "both")
    assert answer["past_flip"]["restored"][0]["largest"] == 0
    assert list(tmp_path.glob("proof-*.json"))


def test_the_argument_is_numbered(traces: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert run(["blame", *map(str, traces), "--request", "anchor", "--explain", "--no-proof"]) == 1
    shown = capfd.readouterr().out
    assert shown.startswith("1. Control: same prompts")
    assert "The first record with equal inputs and another output is layer 0" in shown
    assert "suspected" in shown


def test_a_run_against_itself_has_nothing_to_explain(
    traces: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run(["blame", str(traces[0]), str(traces[0])]) == 0
    assert "no difference seen in 16 tokens" in capfd.readouterr().out


@pytest.mark.parametrize("option", ["--reference", "--check-recording", "--past-flip=2"])
def test_what_needs_the_model_does_not_go_with_no_proof(
    traces: tuple[Path, Path], capfd: pytest.CaptureFixture[str], option: str
) -> None:
    capfd.readouterr()
    assert run(["blame", *map(str, traces), "--no-proof", option]) == 2
    assert "leave --no-proof out" in capfd.readouterr().err


def test_a_second_recording_of_something_else_does_not_pass_as_a_control(
    traces: tuple[Path, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert run(["blame", *map(str, traces), "--again", str(traces[1]), "--json"]) == 1
    answer = json.loads(capfd.readouterr().out)
    assert answer["verdict"] == "not reproducible"
    assert answer["origins"] is None
