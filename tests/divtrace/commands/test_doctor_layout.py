"""Doctor's lines stay in the width there is, and what is to be copied stays on one line."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from divtrace.commands import doctor


def lines_at(width: int, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(doctor, "stdout_console", lambda: SimpleNamespace(width=width))
    answer = CliRunner().invoke(doctor.command, [])
    assert answer.exit_code == 0, answer.output
    return answer.stdout.splitlines()


@pytest.mark.parametrize("width", [60, 80])
def test_words_of_facts_are_wrapped_below_their_name(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = lines_at(width, monkeypatch)
    assert all(len(line) <= width for line in lines if "/" not in line)
    assert {line[:12].strip() for line in lines} >= {"device", "versions", "same bits", "models"}
    start = next(place for place, line in enumerate(lines) if line.startswith("versions"))
    assert lines[start + 1].startswith(" " * 12)


def test_a_command_that_brings_what_is_missing_stands_whole_on_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    find: Callable[[str], object] = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "plotly" else find(name))
    lines = lines_at(60, monkeypatch)
    start = next(place for place, line in enumerate(lines) if line.startswith("missing     plotly"))
    assert lines[start + 1].endswith(" -m pip install 'divtrace[plot]'")
