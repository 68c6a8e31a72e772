"""What a user can get wrong: one sentence that says what, where and what to do, exit code 2, no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Answer, Divtrace, lines_of, workload_document


def assert_one_sentence(answer: Answer, *words: str) -> None:
    assert answer.code == 2, answer
    assert answer.out == ""
    assert len(lines_of(answer.err)) == 1, answer.err
    assert "Traceback" not in answer.err
    for word in words:
        assert word in answer.err, answer.err


@pytest.fixture
def pair(divtrace: Divtrace, workload: Path, tmp_path: Path) -> tuple[Path, Path]:
    assert divtrace("record", workload, "-o", tmp_path / "runs").code == 0
    return tmp_path / "runs" / "serial.h5", tmp_path / "runs" / "batched.h5"


@pytest.mark.parametrize("command", ["diff", "blame"])
@pytest.mark.parametrize("content", [b"", b"no trace at all", os.urandom(4096)])
def test_a_file_that_is_no_trace(
    divtrace: Divtrace, pair: tuple[Path, Path], tmp_path: Path, command: str, content: bytes
) -> None:
    foreign = tmp_path / "foreign.h5"
    foreign.write_bytes(content)
    assert_one_sentence(divtrace(command, pair[0], foreign), "foreign.h5")


@pytest.mark.parametrize("command", ["diff", "blame"])
def test_a_trace_cut_in_the_middle(divtrace: Divtrace, pair: tuple[Path, Path], tmp_path: Path, command: str) -> None:
    cut = tmp_path / "cut.h5"
    whole = pair[1].read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    assert_one_sentence(divtrace(command, pair[0], cut), "cut.h5")


def test_a_trace_that_does_not_exist(divtrace: Divtrace, pair: tuple[Path, Path]) -> None:
    assert_one_sentence(divtrace("diff", pair[0], "nowhere.h5"), "nowhere.h5")


def test_traces_of_different_prompts(divtrace: Divtrace, pair: tuple[Path, Path], tmp_path: Path) -> None:
    document = workload_document(tmp_path / "unused")
    document["model"] = yaml.safe_load((tmp_path / "workload.yaml").read_text())["model"]
    for request in document["requests"]:  # type: ignore[attr-defined]
        request["prompt_tokens"] = [7, *request["prompt_tokens"]]
    other = tmp_path / "other.yaml"
    other.write_text(yaml.safe_dump(document))
    assert divtrace("record", other, "-o", tmp_path / "other").code == 0
    other_trace = tmp_path / "other" / "serial.h5"
    assert_one_sentence(divtrace("diff", pair[0], other_trace), "prompt")
    assert_one_sentence(divtrace("blame", pair[0], other_trace), "nputs differ", "prompt")


def test_an_arm_that_neither_the_file_nor_the_command_line_describes(
    divtrace: Divtrace, workload: Path, tmp_path: Path
) -> None:
    assert_one_sentence(divtrace("record", workload, "-o", tmp_path / "out", "--arm", "seriall"), "seriall", "batched")


def test_an_unknown_request(divtrace: Divtrace, pair: tuple[Path, Path]) -> None:
    assert_one_sentence(divtrace("blame", *pair, "--request", "nobody"), "nobody")
    assert_one_sentence(divtrace("diff", *pair, "--request", "nobody"), "nobody")


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("a:policy=threshold:-1", ("threshold",)),
        ("a:policy=fastest", ("fastest", "threshold:N")),
        ("a:max_active=0", ("max_active",)),
        ("a:no_such_knob=1", ("no_such_knob",)),
        ("a:gemm=f64", ("gemm",)),
        ("../a:max_active=1", ("file name",)),
    ],
)
def test_settings_that_make_no_sense(
    divtrace: Divtrace, workload: Path, tmp_path: Path, arm: str, words: tuple[str, ...]
) -> None:
    assert_one_sentence(divtrace("record", workload, "-o", tmp_path / "out", "--arm", arm), *words)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "/nowhere/model.gguf"}, ("model.gguf",)),
        ({"requests": []}, ("requests",)),
        ({"surprise": 1}, ("surprise",)),
        ({"arms": {}}, ("arms",)),
        ({"version": 2}, ("version",)),
        ({"settings": {"policy": "threshold:-3"}}, ("threshold",)),
    ],
)
def test_a_workload_with_a_wrong_field(
    divtrace: Divtrace, workload: Path, tmp_path: Path, change: dict[str, object], words: tuple[str, ...]
) -> None:
    document = yaml.safe_load(workload.read_text()) | change
    workload.write_text(yaml.safe_dump(document))
    assert_one_sentence(divtrace("record", workload, "-o", tmp_path / "out"), *words)


@pytest.mark.parametrize("text", ["", "- a list", "key: [unclosed", "\x00\x01", "just words"])
def test_a_file_that_is_no_workload(divtrace: Divtrace, tmp_path: Path, text: str) -> None:
    path = tmp_path / "odd.yaml"
    path.write_text(text)
    assert_one_sentence(divtrace("record", path, "-o", tmp_path / "out"), "odd.yaml")


def test_a_reader_that_leaves_early_is_no_error(pair: tuple[Path, Path]) -> None:
    program = "from divtrace.commands.main import main; main()"
    script = f'"{sys.executable}" -c "{program}" diff "{pair[0]}" "{pair[1]}" | head -n 1'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stderr == ""
