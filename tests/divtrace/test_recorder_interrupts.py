"""Ctrl-C and errors in the middle of recording a step: the trace holds whole steps."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from divtrace.recorder.interrupts import interrupts_deferred
from divtrace.recorder.recorder import Recorder
from divtrace.recording import run_recorded
from divtrace.trace.check import check_trace
from divtrace.trace.reader import open_trace
from engine.observer import RunInfo
from engine.request import Request
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model


class Disturbed(Recorder):
    """Something happens while the `calls`-th token text is looked up, which is in the middle of a step."""

    def disturb(self, calls: int, what: Callable[[], None]) -> None:
        self.calls, self.what = calls, what

    def run_started(self, info: RunInfo) -> None:
        def token_bytes(token: int) -> bytes:
            self.calls -= 1
            if self.calls == 0:
                self.what()
            return info.token_bytes(token)

        super().run_started(replace(info, token_bytes=token_bytes))


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def fail() -> None:
    raise RuntimeError("no text")


def record(path: Path, calls: int, what: Callable[[], None]) -> None:
    recorder = Disturbed(path, flush_steps=2)
    recorder.disturb(calls, what)
    requests = [Request(name, (1, 2, 3), 20, ignore_eos=True) for name in ("a", "b")]
    run_recorded(tiny_model(), EngineSettings(), requests, recorder)


@pytest.mark.parametrize("calls", [5, 20, 40])
def test_ctrl_c_within_a_step_leaves_a_sound_trace_of_whole_steps(tmp_path: Path, calls: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(tmp_path / "run.h5", calls, press_ctrl_c)
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.interrupted
        assert check_trace(trace) == []
        assert trace.step_count > 0


def test_an_error_within_a_step_leaves_what_was_flushed(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no text"):
        record(tmp_path / "run.h5", 40, fail)
    with open_trace(tmp_path / "run.h5") as trace:
        assert not trace.clean_end
        assert check_trace(trace) == []
        assert trace.step_count > 0


def test_the_second_ctrl_c_is_not_held_back() -> None:
    reached = []

    def impatient() -> None:
        with interrupts_deferred():
            press_ctrl_c()
            reached.append(1)
            press_ctrl_c()
            reached.append(2)

    with pytest.raises(KeyboardInterrupt):
        impatient()
    assert reached == [1]


def test_blocks_within_blocks_hold_ctrl_c_back_to_the_end_of_the_outer_one() -> None:
    reached = []

    def nested() -> None:
        with interrupts_deferred():
            with interrupts_deferred():
                press_ctrl_c()
                reached.append("inner")
            reached.append("outer")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert reached == ["inner", "outer"]
