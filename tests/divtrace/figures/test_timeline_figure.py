"""Timelines: every segment is drawn once, the curve is the packed rows, origin and flip are where blame found them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import divtrace
from divtrace.align.index import SEGMENT_KINDS
from divtrace.figures import lanes
from tests.divtrace.report.long_runs import FLIP_AT, FLIPPING_REQUEST, write_long_run
from tests.divtrace.report.pairs import write_flip

pytest.importorskip("plotly", reason="plotly is not installed (pip install 'divtrace[plot]')")


@pytest.fixture(scope="module")
def long_pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A hundred requests and a threshold of 16 rows; request 7 drifts and flips in B."""
    folder = tmp_path_factory.mktemp("long")
    return (
        write_long_run(folder / "a.h5", slots=10, is_b=False, mean_outputs=400),
        write_long_run(folder / "b.h5", slots=12, is_b=True, mean_outputs=400),
    )


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """The small pair that flips after a shared batch."""
    for name, is_shared in (("serial.h5", False), ("batched.h5", True)):
        write_flip(tmp_path / name, is_shared).close()
    return tmp_path / "serial.h5", tmp_path / "batched.h5"


def drawn_steps(figure: Any) -> Counter[tuple[str, int, int]]:
    """(kind, lane, step) of everything that is drawn in lanes, with how often."""
    drawn: Counter[tuple[str, int, int]] = Counter()
    for trace in figure.data:
        if trace.name not in SEGMENT_KINDS:
            continue
        if trace.type == "bar":
            bars = zip(trace.y, trace.base, trace.x, strict=True)
        else:
            bars = ((y, x, end - x) for y, x, end in zip(trace.y[::3], trace.x[::3], trace.x[1::3], strict=True))
        for lane, first, length in bars:
            drawn.update((trace.name, int(lane), step) for step in range(int(first), int(first + length)))
    return drawn


def recorded_steps(trace: divtrace.Trace) -> Counter[tuple[str, int, int]]:
    columns = (trace.column("segments", name).tolist() for name in ("kind", "request", "step"))
    return Counter((SEGMENT_KINDS[kind], request, step) for kind, request, step in zip(*columns, strict=True))


def test_every_segment_is_drawn_once(pair: tuple[Path, Path]) -> None:
    for path in pair:
        with divtrace.open_trace(path) as trace:
            figure = trace.plot_timeline()
            assert drawn_steps(figure) == recorded_steps(trace)
            assert all(one.type != "scattergl" for one in figure.data)
            assert list(figure.layout.yaxis2.ticktext) == ["anchor", "guest"]


def test_a_long_run_is_drawn_with_webgl_and_loses_nothing(long_pair: tuple[Path, Path], monkeypatch: Any) -> None:
    monkeypatch.setattr(lanes, "MOST_SHARP_BARS", 10)
    with divtrace.open_trace(long_pair[0]) as trace:
        figure = trace.plot_timeline()
        assert {one.type for one in figure.data if one.name in SEGMENT_KINDS} == {"scattergl"}
        assert drawn_steps(figure) == recorded_steps(trace)


def test_too_many_bars_become_stretches_in_which_no_step_is_drawn_twice(
    long_pair: tuple[Path, Path], monkeypatch: Any
) -> None:
    monkeypatch.setattr(lanes, "MOST_BARS", 150)
    with divtrace.open_trace(long_pair[0]) as trace:
        figure = trace.plot_timeline()
        drawn, recorded = drawn_steps(figure), recorded_steps(trace)
    assert sum(len(one.y) for one in figure.data if one.name in SEGMENT_KINDS) < 1_000
    places = Counter((lane, step) for _, lane, step in drawn.elements())
    assert max(places.values()) == 1
    assert {(lane, step) for _, lane, step in recorded} <= set(places)
    assert {lane for kind, lane, _ in drawn if kind == "prefill"} == set(range(100))


def test_the_curve_is_the_packed_rows_and_the_threshold_is_the_policys(long_pair: tuple[Path, Path]) -> None:
    with divtrace.open_trace(long_pair[0]) as trace:
        packed = trace.column("steps", "packed_rows")
        figure = trace.plot_timeline()
    curve = next(one for one in figure.data if one.name == "packed rows")
    assert np.array_equal(np.asarray(curve.y, np.int64), [*packed, packed[-1]])
    assert curve.line.shape == "hv"
    threshold = next(one for one in figure.data if one.name == "threshold: more than 16 rows")
    assert list(threshold.y) == [16.5, 16.5]
    assert figure.layout.yaxis.type == "log"


def test_a_run_without_a_threshold_has_no_such_line(pair: tuple[Path, Path]) -> None:
    with divtrace.open_trace(pair[0]) as trace:
        assert not [one for one in trace.plot_timeline().data if "threshold" in (one.name or "")]


def marks(figure: Any, symbol: str) -> list[tuple[float, float]]:
    """(step, lane) of marks over lanes, in the order of panes."""
    found = [one for one in figure.data if one.type == "scatter" and one.marker.symbol == symbol]
    return [(one.x[-1] - 0.5, one.y[-1]) for one in found]


def test_origin_and_flip_are_joined_in_both_runs(long_pair: tuple[Path, Path]) -> None:
    result = divtrace.blame(*long_pair, proof=False)
    figure = result.plot()
    assert result.origins is not None
    origin, flip = result.origins.origins[0], result.origins
    assert flip.position == FLIP_AT
    assert marks(figure, "diamond") == [(origin.step_a, FLIPPING_REQUEST), (origin.step_b, FLIPPING_REQUEST)]
    assert marks(figure, "star") == [(flip.step_a, FLIPPING_REQUEST), (flip.step_b, FLIPPING_REQUEST)]
    arrows = [(one.ax - 0.5, one.x - 0.5) for one in figure.layout.annotations if one.showarrow]
    assert arrows == [(origin.step_a, flip.step_a), (origin.step_b, flip.step_b)]
    assert "kernel path, suspected: request-7 flips at position 260" in figure.layout.title.text


def test_each_run_has_its_own_steps(pair: tuple[Path, Path]) -> None:
    result = divtrace.blame(*pair, proof=False)
    assert result.origins is not None
    origin = replace(result.origins.origins[0], step_a=0, step_b=2)
    moved = replace(result, origins=replace(result.origins, origins=(origin,), step_a=1, step_b=3))
    figure = moved.plot()
    assert marks(figure, "diamond") == [(0, 0), (2, 0)]
    assert marks(figure, "star") == [(1, 0), (3, 0)]


def test_one_run_of_a_result_is_marked_alone(pair: tuple[Path, Path]) -> None:
    result = divtrace.blame(*pair, proof=False)
    assert result.origins is not None
    for path, origin_step in zip(
        pair, (result.origins.origins[0].step_a, result.origins.origins[0].step_b), strict=True
    ):
        with divtrace.open_trace(path) as trace:
            assert marks(trace.plot_timeline(result), "diamond") == [(origin_step, 0)]
            assert marks(trace.plot_timeline(), "diamond") == []


def test_a_result_about_other_runs_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    result = divtrace.blame(*pair, proof=False)
    write_flip(tmp_path / "other.h5", False).close()
    with (
        divtrace.open_trace(tmp_path / "other.h5") as trace,
        pytest.raises(divtrace.DivtraceError, match="neither of the two runs"),
    ):
        trace.plot_timeline(result)


def test_runs_without_a_difference_have_timelines_and_no_marks(pair: tuple[Path, Path]) -> None:
    figure = divtrace.blame(pair[0], pair[0], proof=False).plot()
    assert marks(figure, "diamond") == marks(figure, "star") == []
    assert "no divergence seen" in figure.layout.title.text


def test_a_run_without_steps_is_an_empty_figure(pair: tuple[Path, Path], tmp_path: Path) -> None:
    from divtrace.trace.writer import TraceWriter

    with divtrace.open_trace(pair[0]) as whole, TraceWriter(tmp_path / "empty.h5", whole.header):
        pass
    with divtrace.open_trace(tmp_path / "empty.h5") as trace:
        assert trace.plot_timeline().data == ()


def test_without_plotly_the_way_to_get_it_is_said(pair: tuple[Path, Path], monkeypatch: Any) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "plotly", None)
    with divtrace.open_trace(pair[0]) as trace, pytest.raises(divtrace.DivtraceError) as caught:
        trace.plot_timeline()
    assert str(caught.value) == "figures need plotly, which is not installed; run: pip install 'divtrace[plot]'."
    with pytest.raises(divtrace.DivtraceError, match="pip install"):
        divtrace.diff(*pair).plot()
