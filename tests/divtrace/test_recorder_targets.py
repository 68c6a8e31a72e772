"""Which traces a recording may write over: unfinished ones, and those that it was given leave for."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import yaml

import divtrace
from divtrace.commands.main import run
from divtrace.errors import DivtraceError
from divtrace.recorder.targets import unfinished_targets
from divtrace.trace.writer import TraceWriter
from fixtures.tiny_gguf import write_tiny_gguf
from tests.divtrace.report.pairs import write_flip


def write_unfinished(path: Path, interrupted: bool) -> Path:
    """A trace that Ctrl-C ended cleanly, or one that a crash left."""
    write_flip(path.with_name("whole.h5"), False).close()
    with divtrace.open_trace(path.with_name("whole.h5")) as whole:
        writer = TraceWriter(path, whole.header)
    if interrupted:
        writer.close(interrupted=True)
    else:
        writer.abandon()
    return path


@pytest.mark.parametrize(("interrupted", "words"), [(True, "interrupted at step 0"), (False, "ended early at step 0")])
def test_an_unfinished_trace_may_be_recorded_again(tmp_path: Path, interrupted: bool, words: str) -> None:
    path = write_unfinished(tmp_path / "serial.h5", interrupted)
    for overwrite in (False, True):
        (found,) = unfinished_targets([path, tmp_path / "new.h5"], overwrite)
        assert str(found) == f"{path}: {words}; recording it again."


def test_a_complete_trace_needs_leave(tmp_path: Path) -> None:
    path = tmp_path / "serial.h5"
    write_flip(path, False).close()
    assert unfinished_targets([path], overwrite=True) == ()
    with pytest.raises(DivtraceError, match="--force"):
        unfinished_targets([path], overwrite=False)


@pytest.mark.parametrize("content", [b"", b"notes that somebody named .h5"])
def test_a_file_that_is_no_trace_needs_leave(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "serial.h5"
    path.write_bytes(content)
    with pytest.raises(DivtraceError, match="--force"):
        unfinished_targets([path], overwrite=False)


def test_a_file_that_is_being_recorded_is_left_alone_whatever_was_asked(tmp_path: Path) -> None:
    write_flip(tmp_path / "whole.h5", False).close()
    with divtrace.open_trace(tmp_path / "whole.h5") as whole:
        writer = TraceWriter(tmp_path / "serial.h5", whole.header)
    try:
        for overwrite in (False, True):
            with pytest.raises(DivtraceError, match="another process is recording"):
                unfinished_targets([tmp_path / "serial.h5"], overwrite)
    finally:
        writer.abandon()


def test_the_same_command_goes_again_after_an_interruption(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model, file = tmp_path / "tiny.gguf", tmp_path / "case.yaml"
    write_tiny_gguf(model, "llama", storage="Q4_1")
    request = {"id": "one", "prompt_tokens": [5, 6, 7], "max_tokens": 6, "ignore_eos": True}
    file.write_text(yaml.safe_dump({"model": str(model), "requests": [request], "arms": {"only": {"max_active": 1}}}))

    class Interrupter(divtrace.RecordWatcher):
        @contextlib.contextmanager
        def running(self, arm: Any) -> Any:
            yield lambda engine: _raise_at(engine, 3)

    with pytest.raises(KeyboardInterrupt):
        divtrace.record(file, tmp_path / "runs", watcher=Interrupter())
    command = ["record", str(file), "-o", str(tmp_path / "runs")]
    assert run(command) == 0
    out, err = capfd.readouterr()
    assert err.count("interrupted at step 3; recording it again.") == 1
    assert "1 requests, 6 tokens" in out
    assert run(command) == 2
    assert "--force" in capfd.readouterr().err
    assert run([*command, "--force"]) == 0


def test_the_function_warns_of_what_it_replaces(tmp_path: Path) -> None:
    write_tiny_gguf(tmp_path / "tiny.gguf", "llama", storage="Q4_1")
    write_unfinished(tmp_path / "only.h5", interrupted=False)
    request = {"id": "one", "prompt_tokens": [5], "max_tokens": 2, "ignore_eos": True}
    workload = {"model": str(tmp_path / "tiny.gguf"), "requests": [request], "arms": {"only": {"max_active": 1}}}
    with pytest.warns(UserWarning, match="ended early at step 0; recording it again"):
        divtrace.record(workload, tmp_path)
    with divtrace.open_trace(tmp_path / "only.h5") as trace:
        assert trace.clean_end


def _raise_at(engine: Any, step: int) -> None:
    if engine.step_number == step:
        raise KeyboardInterrupt
