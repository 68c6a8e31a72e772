"""Arguments of the wrong kind are answered with a sentence that shows the right one, not with a fault deep inside."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import divtrace
from tests.divtrace.trace.builders import example_run

PATH = "a path, a URL, a file object or an open trace"
ARMS = "give arms as {'serial': {'max_active': 1}}"
WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "a number is no trace": (lambda trace: divtrace.diff(trace, 5), f"5 is no trace; give {PATH}"),
    "a mapping is no trace": (lambda trace: divtrace.blame({}, trace), f"{{}} is no trace; give {PATH}"),
    "again": (lambda trace: divtrace.blame(trace, trace, again=[]), f"[] is no trace; give {PATH}"),
    "a list is no workload": (lambda trace: divtrace.record(["a"], trace), "['a'] is no workload; give the path"),
}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return example_run().write(tmp_path / "example.h5")


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_shown_with_a_right_one(trace: Path, name: str) -> None:
    call, words = WRONG[name]
    with pytest.raises(divtrace.DivtraceError) as caught:
        call(trace)
    assert words in str(caught.value)


@pytest.mark.parametrize("arms", [{"a": 3}, {1: {}}, [{"a": 1}], 5])
def test_arms_of_the_wrong_kind_are_shown_with_right_ones(tmp_path: Path, arms: Any) -> None:
    workload = {"version": 1, "model": "none.gguf", "requests": [{"id": "a", "prompt_tokens": [1], "max_tokens": 1}]}
    with pytest.raises(divtrace.DivtraceError, match=ARMS.replace("{", r"\{")):
        divtrace.record(workload, tmp_path, arms=arms)


def test_what_a_workload_lacks_is_named_and_its_content_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(divtrace.DivtraceError) as caught:
        divtrace.record({"version": 1, "requests": [{"id": "a", "prompt_tokens": [1], "max_tokens": 1}]}, tmp_path)
    assert str(caught.value) == "the given workload: model is missing; add it."


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"rows": 5}, "rows is 5; give a list of row counts"),
        ({"rows": ["1"]}, "rows is ['1']; give a list of row counts"),
        ({"budget": "1"}, "budget is '1'; give seconds"),
        ({"shapes": ["64x64:7"]}, "'64x64:7' asks for 7 bits; give one of 0, 2, 3, 4, 5, 6, 8."),
    ],
)
def test_a_probe_of_the_wrong_kind_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(divtrace.DivtraceError) as caught:
        divtrace.probe(**wrong)
    assert words in str(caught.value)


def test_a_timeline_marks_a_result_of_blame_and_nothing_else(trace: Path) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed (pip install 'divtrace[plot]')")
    difference: Any = divtrace.diff(trace, trace)
    with divtrace.open_trace(trace) as opened, pytest.raises(divtrace.DivtraceError, match=r"what divtrace\.blame"):
        opened.plot_timeline(difference)


def test_a_closed_trace_says_so_and_an_open_one_says_what_it_is(trace: Path) -> None:
    with divtrace.open_trace(trace) as opened:
        assert repr(opened) == f"<Trace {trace}: level kv, {opened.ending()}>"
        opened.column("steps", "packed_rows")
    assert repr(opened) == f"<Trace {trace}: closed>"
    for use in (lambda: opened.column("steps", "head_rows"), lambda: divtrace.diff(opened, trace)):
        with pytest.raises(divtrace.TraceError, match=r"was closed; open it again with open_trace\.$"):
            use()
