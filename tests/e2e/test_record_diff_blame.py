"""The main job from the command line, on a tiny model: record, diff, blame, replay."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.conftest import Divtrace


def record(divtrace: Divtrace, workload: Path, folder: Path, *more: object) -> tuple[Path, Path]:
    answer = divtrace("record", workload, "-o", folder, *more)
    assert answer.code == 0, answer.err
    return folder / "serial.h5", folder / "batched.h5"


def test_a_pair_that_shares_a_batch_differs_in_state_and_blame_names_that_batch(
    divtrace: Divtrace, workload: Path, tmp_path: Path
) -> None:
    serial, batched = record(divtrace, workload, tmp_path / "runs")
    difference = json.loads(divtrace("diff", serial, batched, "--json").out)
    assert difference["exit_status"] == 1
    blamed = json.loads(divtrace("blame", serial, batched, "--request", "anchor", "--json").out)
    origin = blamed["origins"]["origins"][0]
    assert (origin["step_b"], origin["kind"]) == (1, "kernel path")
    assert {s["request"]: s["rows"] for s in origin["batch_b"]["segments"]} == {"anchor": 1, "follower": 40}
    assert origin["crossings"][0]["joined"] == [{"request": "follower", "kind": "prefill", "rows": 40}]
    if blamed["origins"]["flipped"]:
        assert (blamed["verdict"], blamed["confidence"]) == ("kernel path", "proven")


def test_the_same_pair_under_forced_gemv_shows_no_difference(
    divtrace: Divtrace, workload: Path, tmp_path: Path
) -> None:
    arms = ("--arm", "serial:policy=gemv", "--arm", "batched:policy=gemv")
    serial, batched = record(divtrace, workload, tmp_path / "runs", *arms)
    answer = divtrace("diff", serial, batched)
    assert answer.code == 0
    assert "No difference seen in 68 tokens" in answer.out
    assert "deterministic" not in answer.out


def test_a_trace_replays_bit_for_bit(divtrace: Divtrace, workload: Path, tmp_path: Path) -> None:
    _, batched = record(divtrace, workload, tmp_path / "runs")
    answer = divtrace("replay", batched, "--json")
    assert answer.code == 0
    assert json.loads(answer.out)["equal"] is True


def test_speculation_replays_bit_for_bit_too(divtrace: Divtrace, workload: Path, tmp_path: Path) -> None:
    arms = [
        part
        for name in ("serial", "batched")
        for part in ("--arm", f"{name}:speculation.drafter=self,speculation.self_layers=1,speculation.tokens=3")
    ]
    for trace in record(divtrace, workload, tmp_path / "runs", *arms):
        answer = divtrace("replay", trace)
        assert answer.code == 0, answer.out + answer.err


def test_an_existing_trace_is_not_overwritten_unless_forced(divtrace: Divtrace, workload: Path, tmp_path: Path) -> None:
    serial, _ = record(divtrace, workload, tmp_path / "runs")
    before = serial.read_bytes()
    again = divtrace("record", workload, "-o", tmp_path / "runs")
    assert again.code == 2
    assert ".h5: the file exists" in again.err
    assert serial.read_bytes() == before
    assert divtrace("record", workload, "-o", tmp_path / "runs", "--force").code == 0
