"""Recordings that die: what was flushed before stays readable, and the trace says that it ended early."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from divtrace.trace.reader import Trace, open_trace
from tests.divtrace.trace.recording_process import long_run

ROOT = Path(__file__).parents[3]
FLUSH_STEPS = 4
KILLS = int(os.environ.get("DIVTRACE_KILLS", "4"))


def start(path: Path, steps: int, **options: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.divtrace.trace.recording_process"]
    return subprocess.Popen(
        [*command, str(path), str(FLUSH_STEPS), str(steps)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )


def flushed_steps(lines: Iterator[str]) -> int:
    counts = [int(line.split()[1]) for line in lines if line.startswith("flushed") and line.endswith("\n")]
    return max(counts, default=0)


def assert_holds_what_was_recorded(trace: Trace) -> None:
    run = long_run(trace.step_count)
    events = run.events()
    for event in events:
        step = event.batch.step
        first = int(trace.column("steps", "row_offset")[step])
        for layer, written in enumerate(event.kv_rows or ()):
            magnitudes = trace.column("rows", "key_magnitude")[first : first + event.batch.packed_rows, layer]
            assert magnitudes.tolist() == np.abs(written.keys).max(axis=(1, 2)).tolist()
    assert trace.output(0).tolist() == [4 + step % 7 for step in range(trace.step_count)]


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_recording_reads_up_to_its_last_flush(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "killed.h5"
    process = start(path, steps=4000)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.8))
    process.send_signal(signal.SIGKILL)
    announced = flushed_steps(iter(process.stdout))
    process.communicate()
    with open_trace(path) as trace:
        assert not trace.clean_end
        assert trace.ending() == f"ended early at step {trace.step_count}"
        assert announced <= trace.step_count <= announced + FLUSH_STEPS
        assert_holds_what_was_recorded(trace)


def limit_file_size(size_bytes: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


@pytest.mark.parametrize("size_bytes", [800_000, 1_500_000])
def test_a_full_disk_ends_in_one_sentence_and_a_readable_trace(tmp_path: Path, size_bytes: int) -> None:
    path = tmp_path / "full.h5"
    process = start(path, steps=4000, preexec_fn=lambda: limit_file_size(size_bytes))
    output, errors = process.communicate()
    assert process.returncode == 2
    assert errors.count("\n") == 1
    assert str(path) in errors
    assert "File too large" in errors
    with open_trace(path) as trace:
        assert not trace.clean_end
        assert trace.step_count == flushed_steps(iter(output.splitlines(keepends=True))) > 0
        assert_holds_what_was_recorded(trace)


def test_a_disk_without_room_for_an_empty_trace_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "full.h5"
    process = start(path, steps=10, preexec_fn=lambda: limit_file_size(1000))
    _, errors = process.communicate()
    assert process.returncode == 2
    assert errors.count("\n") == 1
    assert "File too large" in errors
    assert not path.exists()


@pytest.mark.parametrize("step", [401, 1502])
def test_a_disk_that_breaks_in_the_middle_of_a_flush_ends_in_one_sentence(tmp_path: Path, step: int) -> None:
    path = tmp_path / "broken.h5"
    process = start(path, steps=2000, env={**os.environ, "BREAK_AT": str(step)})
    output, errors = process.communicate()
    assert process.returncode == 2
    assert errors.count("\n") == 1
    assert str(path) in errors
    with open_trace(path) as trace:
        assert not trace.clean_end
        assert trace.step_count == flushed_steps(iter(output.splitlines(keepends=True))) == step // 4 * 4
        assert_holds_what_was_recorded(trace)


def test_ctrl_c_ends_a_recording_with_a_footer(tmp_path: Path) -> None:
    path = tmp_path / "interrupted.h5"
    process = start(path, steps=4000)
    assert process.stdout is not None
    while process.stdout.readline() != f"flushed {3 * FLUSH_STEPS}\n":
        pass
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert errors == ""
    with open_trace(path) as trace:
        assert trace.clean_end
        assert trace.interrupted
        assert trace.step_count >= 3 * FLUSH_STEPS
        assert_holds_what_was_recorded(trace)


def test_a_trace_that_is_being_written_can_be_followed(tmp_path: Path) -> None:
    path = tmp_path / "live.h5"
    process = start(path, steps=400)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    with open_trace(path) as trace:
        seen = [trace.step_count]
        while not trace.clean_end:
            seen.append(trace.refresh())
            assert_holds_what_was_recorded(trace)
        assert seen == sorted(seen)
        assert seen[-1] == 400
    process.communicate()
