"""The trace-event export: valid by the format's rules, and its slices add up to the steps."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from divtrace.export import perfetto_events, write_perfetto
from divtrace.export.clock import read_clock
from divtrace.export.events import ENGINE_THREAD, FIRST_REQUEST_THREAD
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.observer import StepEvent, StepTimings
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment

Event = dict[str, Any]


@pytest.fixture
def example(tmp_path: Path) -> Trace:
    return open_trace(example_run().write(tmp_path / "example.h5", level=Level.TOKENS))


def slices(document: dict[str, Any], thread: int, process: int = 1) -> list[Event]:
    """Complete events of one thread."""
    events = document["traceEvents"]
    return [e for e in events if e["ph"] == "X" and e["tid"] == thread and e["pid"] == process]


def nanoseconds(microseconds: float) -> int:
    """A time of the export as whole nanoseconds."""
    exact = Fraction(str(microseconds)) * 1000
    assert exact.denominator == 1
    return int(exact)


def test_slices_add_up_to_the_steps_to_the_nanosecond(example: Trace) -> None:
    document = perfetto_events(example)
    clock = read_clock(example)
    engine = slices(document, ENGINE_THREAD)
    steps = [event for event in engine if event["cat"] == "step"]
    assert [nanoseconds(event["ts"]) for event in steps] == clock.starts_ns[:-1].tolist()
    assert sum(nanoseconds(event["dur"]) for event in steps) == int(clock.starts_ns[-1])
    for step in steps:
        inside = [p for p in engine if p["cat"] == "phase" and step["ts"] <= p["ts"] < step["ts"] + step["dur"]]
        assert sum(nanoseconds(phase["dur"]) for phase in inside) == nanoseconds(step["dur"])


def test_rows_of_the_segments_of_a_step_add_up_to_its_packed_rows(example: Trace) -> None:
    document = perfetto_events(example)
    rows: dict[int, int] = defaultdict(int)
    for event in document["traceEvents"]:
        if event.get("cat") == "segment":
            rows[event["args"]["step"]] += event["args"]["rows"]
    assert list(rows.values()) == example.column("steps", "packed_rows").tolist()
    kinds = [event["name"] for event in slices(document, FIRST_REQUEST_THREAD)]
    assert kinds == ["prefill", "decode", "verify"]


def test_slices_of_a_thread_nest_and_never_overlap(example: Trace) -> None:
    document = perfetto_events(example, example)
    for process in (1, 2):
        for thread in {event["tid"] for event in document["traceEvents"] if event["ph"] == "X"}:
            assert_nested(slices(document, thread, process))


def assert_nested(events: list[Event]) -> None:
    """Each slice ends before the one that holds it, as viewers ask of complete events."""
    assert events
    open_ends: list[int] = []
    for event in events:
        start, duration = nanoseconds(event["ts"]), nanoseconds(event["dur"])
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or start + duration <= open_ends[-1]
        open_ends.append(start + duration)


def test_every_event_has_what_the_format_asks_of_its_phase(example: Trace) -> None:
    for event in perfetto_events(example)["traceEvents"]:
        assert event["ph"] in "XCMi"
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        elif event["ph"] == "C":
            assert event["args"]
            assert all(isinstance(value, int) for value in event["args"].values())
        elif event["ph"] == "i":
            assert event["s"] in "gpt"
        else:
            assert set(event["args"]) <= {"name", "sort_index"}


def test_counters_hold_the_rows_of_each_step_and_fall_to_zero_at_the_end(example: Trace) -> None:
    events = [e for e in perfetto_events(example)["traceEvents"] if e["ph"] == "C"]
    rows = [event["args"]["rows"] for event in events if event["name"] == "packed rows"]
    assert rows == [*example.column("steps", "packed_rows").tolist(), 0]
    assert {event["name"] for event in events} == {"packed rows", "head rows", "requests"}


def test_draft_forwards_and_lifecycle_events_are_there(example: Trace) -> None:
    events = perfetto_events(example)["traceEvents"]
    marks = [(e["name"], e["args"]["step"], e["tid"] - FIRST_REQUEST_THREAD) for e in events if e["ph"] == "i"]
    assert ("admitted", 1, 1) in marks
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"engine", "anchor", "follower"}


def test_a_written_file_is_the_same_document(example: Trace, tmp_path: Path) -> None:
    path = write_perfetto(tmp_path / "run.json", example, example)
    assert json.loads(path.read_text()) == perfetto_events(example, example)
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.endswith(".part")] == []


class UntimedRun(TraceBuilder):
    """A run whose engine measured nothing."""

    def _event(self, *details: Any) -> StepEvent:
        return replace(super()._event(*details), timings=StepTimings(0.0, 0.0, 0.0, 0.0))


def test_a_run_without_times_gets_a_millisecond_a_step_and_says_so(tmp_path: Path) -> None:
    run = UntimedRun()
    run.request("a", (1,))
    run.step(segment("a", SegmentKind.PREFILL, 0, (1,), chosen=(2,)))
    run.step(segment("a", SegmentKind.DECODE, 1, (2,), chosen=(3,)))
    with open_trace(run.write(tmp_path / "untimed.h5")) as trace:
        document = perfetto_events(trace)
    assert [e["dur"] for e in document["traceEvents"] if e.get("cat") == "step"] == [1000.0, 1000.0]
    assert "no time was recorded" in document["otherData"]["untimed"]


def test_names_from_a_trace_stay_text(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("\x1b[31m</script>", (1,))
    run.step(segment("\x1b[31m</script>", SegmentKind.PREFILL, 0, (1,), chosen=(2,)))
    with open_trace(run.write(tmp_path / "run.h5")) as trace:
        names = [e["args"]["name"] for e in perfetto_events(trace)["traceEvents"] if e["name"] == "thread_name"]
    assert names == ["engine", "\\x1b[31m</script>"]
