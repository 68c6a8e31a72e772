"""What commands print into a pipe, and how they end when nobody reads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import divtrace
from divtrace.commands import doctor
from divtrace.commands.main import run
from divtrace.recorder.recorder import Recorder
from engine.observer import RunEnding
from tests.divtrace.trace.builders import example_run

PROGRAM = [sys.executable, "-m", "divtrace"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return example_run().write(tmp_path / "example.h5")


@pytest.mark.parametrize("view", [[], ["--requests"], ["--steps"], ["--step", "0"], ["--follow"]])
def test_lines_in_a_pipe_do_not_end_in_blanks(trace: Path, view: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["show", str(trace), *view]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert len(lines) > 2
    assert [line for line in lines if line != line.rstrip()] == []


def test_following_a_run_says_every_step_once_below_one_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    builder, path = example_run(), tmp_path / "live.h5"
    recorder = Recorder(path, flush_steps=1)
    recorder.run_started(builder.info())
    for request in builder.submitted():
        recorder.request_submitted(request, 0)
    coming = iter(builder.events())
    recorder.step_finished(next(coming))

    def go_on(_: float) -> None:
        """While the reader waits, the run makes one more step, or ends."""
        event = next(coming, None)
        recorder.run_finished(RunEnding()) if event is None else recorder.step_finished(event)

    monkeypatch.setattr("divtrace.commands.show.time.sleep", go_on)
    assert run(["show", str(path), "--follow"]) == 0
    recorder.abandon()
    lines = capfd.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("Steps")] == ["Steps"]
    below = lines[lines.index("Steps") + 2 : -1]
    assert [line.split()[0] for line in below if line[0] != " "] == [str(n) for n in range(len(builder.events()))]
    assert lines[-1] == f"complete, {len(builder.events())} steps"


def test_a_reader_that_leaves_is_no_answer(trace: Path) -> None:
    """0 and 1 would say that runs are equal, or that they differ."""
    script = f"{sys.executable} -m divtrace show {trace} | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")


@pytest.mark.parametrize(
    ("views", "words"),
    [
        (["--step", "0", "--follow"], "--step and --follow are different views"),
        (["--requests", "--steps"], "--requests and --steps are different views"),
        (["--follow", "--json"], "--follow prints steps as they come"),
    ],
)
def test_two_views_at_once_are_refused(
    trace: Path, views: list[str], words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", str(trace), *views]) == 2
    assert words in capfd.readouterr().err


def test_no_command_prints_the_help_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    out, err = capfd.readouterr()
    assert out.startswith("Usage: divtrace [OPTIONS] COMMAND")
    assert out.endswith("in your shell.\n")
    assert err == ""


def test_a_misspelt_command_is_answered_with_the_nearest(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["dif"]) == 2
    sentence = "divtrace: no such command 'dif'; did you mean diff; run divtrace --help for what it takes.\n"
    assert capfd.readouterr().err == sentence


@pytest.mark.parametrize("command", [["report"], ["export"], ["bundle"]])
def test_a_place_that_is_not_there_is_named_before_the_work(
    trace: Path, tmp_path: Path, command: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing" / "out"
    option = "--perfetto" if command == ["export"] else "-o"
    assert run([*command, str(trace), str(trace), option, str(missing)]) == 2
    assert capfd.readouterr().err == (
        f"divtrace: {missing}: there is no folder {missing.parent}; make it first, or choose another.\n"
    )
    assert run([*command, str(trace), str(trace), option, str(tmp_path)]) == 2
    assert f"{tmp_path} is a folder" in capfd.readouterr().err


def test_one_run_two_runs_and_a_bundle_are_exported_and_reported(
    trace: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = tmp_path / "case.zip"
    assert run(["bundle", str(trace), str(trace), "-o", str(bundle)]) == 0
    timelines = []
    for inputs in ([trace], [trace, trace], [bundle]):
        target = tmp_path / f"{len(timelines)}.json"
        assert run(["export", *map(str, inputs), "--perfetto", str(target)]) == 0, capfd.readouterr().err
        timelines.append(target.read_text().count('"process_name"'))
    assert timelines == [1, 2, 2]
    page = tmp_path / "report.html"
    assert run(["report", str(bundle), "--no-proof", "-o", str(page)]) == 0, capfd.readouterr().err
    assert f"divtrace blame {bundle}" in page.read_text()
    compared = divtrace.diff(bundle)
    assert [compared.run_a.path, compared.run_b.path] == [f"{bundle}/a/example.h5", f"{bundle}/b/example.h5"]


def test_doctor_says_how_to_bring_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DIVTRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(doctor, "OPTIONAL", {"no_such_package": ("nothing", "plot")})
    assert run(["doctor"]) == 0
    out = capfd.readouterr().out
    assert "none yet, divtrace demo brings SmolLM2-135M, in" in out
    assert f"{sys.executable} -m pip install 'divtrace[plot]'" in out
