"""Gap and drift over positions: the numbers are the recorded ones, the flip is where diff found it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import divtrace
from divtrace.trace.bundle import write_bundle
from engine.batch import SegmentKind
from tests.divtrace.report.long_runs import DRIFT_FROM, FLIP_AT, write_long_run
from tests.divtrace.report.pairs import write_flip
from tests.divtrace.trace.builders import TraceBuilder, segment

pytest.importorskip("plotly", reason="plotly is not installed (pip install 'divtrace[plot]')")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Request 7 drifts from one position on and flips at another."""
    folder = tmp_path_factory.mktemp("long")
    return (
        write_long_run(folder / "a.h5", slots=10, is_b=False, mean_outputs=400),
        write_long_run(folder / "b.h5", slots=12, is_b=True, mean_outputs=400),
    )


def curve_of(figure: Any, name: str) -> dict[int, float | None]:
    """Value by position."""
    found = next(one for one in figure.data if one.name == name)
    values = (None if y is None or np.isnan(y) else float(y) for y in found.y)
    return dict(zip(map(int, found.x), values, strict=True))


def test_gap_drift_and_flip_are_the_recorded_ones(pair: tuple[Path, Path]) -> None:
    result = divtrace.diff(*pair)
    figure = result.plot()
    gaps, drifts = curve_of(figure, "gap in A"), curve_of(figure, "drift of the margin")
    assert list(gaps) == list(range(24, FLIP_AT + 1))
    assert gaps[FLIP_AT] == pytest.approx(1e-4, rel=0.1)
    assert [position for position, value in drifts.items() if value is not None] == list(
        range(DRIFT_FROM + 1, FLIP_AT + 1)
    )
    assert drifts[200] == pytest.approx(7e-4, rel=0.01)
    flip = next(one for one in result.requests if one.divergence is not None).divergence
    star = next(one for one in figure.data if one.marker.symbol == "star")
    assert (star.x[0], star.y[0]) == (FLIP_AT, pytest.approx(flip.gap_a if flip is not None else 0))
    assert figure.layout.yaxis.type == "log"
    assert figure.layout.shapes[0].x0 == FLIP_AT
    assert f"{DRIFT_FROM - 24 + 1} of {len(drifts)} drifts are exactly zero" in figure.layout.title.text


def test_another_request_can_be_drawn_and_has_no_flip(pair: tuple[Path, Path]) -> None:
    figure = divtrace.diff(*pair).plot(request="request-3")
    assert "request-3" in figure.layout.title.text
    assert not figure.layout.shapes
    assert set(curve_of(figure, "drift of the margin").values()) == {None}


def test_an_unknown_request_is_named(pair: tuple[Path, Path]) -> None:
    with pytest.raises(divtrace.DivtraceError, match="'nobody' was not compared"):
        divtrace.diff(*pair).plot(request="nobody")


def test_the_runs_may_be_given_again_open_or_as_a_bundle(tmp_path: Path) -> None:
    paths = tmp_path / "serial.h5", tmp_path / "batched.h5"
    for path, is_shared in zip(paths, (False, True), strict=True):
        write_flip(path, is_shared).close()
    result, blamed = divtrace.diff(*paths), divtrace.blame(*paths, proof=False)
    expected = result.plot().to_dict()
    with divtrace.open_trace(paths[0]) as a, divtrace.open_trace(paths[1]) as b:
        write_bundle(a, b, tmp_path / "case.zip")
        assert result.plot(a, b).to_dict() == expected
    for path in paths:
        path.rename(path.with_name(f"moved-{path.name}"))
    with pytest.raises(divtrace.DivtraceError, match=r"serial\.h5 is not there any more; give the traces"):
        result.plot()
    assert result.plot(tmp_path / "case.zip").to_dict() == expected
    assert len(blamed.plot(tmp_path / "case.zip").data) > 4
    with pytest.raises(divtrace.DivtraceError, match="no bundle"):
        result.plot(tmp_path / "moved-serial.h5")


def test_a_run_that_was_recorded_anew_is_not_drawn(tmp_path: Path) -> None:
    paths = tmp_path / "serial.h5", tmp_path / "batched.h5"
    for path, is_shared in zip(paths, (False, True), strict=True):
        write_flip(path, is_shared).close()
    result = divtrace.diff(*paths)
    paths[0].unlink()
    write_flip(paths[0], True).close()
    with pytest.raises(divtrace.DivtraceError, match="not the run that was compared"):
        result.plot()


def test_without_logits_it_is_said_what_to_record(tmp_path: Path) -> None:
    from divtrace.trace.schema import Level

    for name in ("a.h5", "b.h5"):
        run = TraceBuilder()
        run.request("only", (5, 6), max_tokens=1)
        run.step(segment("only", SegmentKind.PREFILL, 0, (5, 6), chosen=(9,)))
        run.finish("only")
        run.write(tmp_path / name, level=Level.TOKENS)
    with pytest.raises(divtrace.EvidenceError, match="--level logits"):
        divtrace.diff(tmp_path / "a.h5", tmp_path / "b.h5").plot()


def test_prompts_that_differ_leave_nothing_to_draw(tmp_path: Path) -> None:
    for name, first in (("a.h5", 5), ("b.h5", 6)):
        run = TraceBuilder()
        run.request("only", (first, 6), max_tokens=1)
        run.step(segment("only", SegmentKind.PREFILL, 0, (first, 6), chosen=(9,)))
        run.finish("only")
        run.write(tmp_path / name)
    with pytest.raises(divtrace.EvidenceError, match="no decision of request 'only'"):
        divtrace.diff(tmp_path / "a.h5", tmp_path / "b.h5").plot()
