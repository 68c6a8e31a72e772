"""The heat map of a probe: numbers of classes, gaps where nothing was tried, and foreign words as text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from divtrace.figures.palette import CLASS_COLOURS
from divtrace.probing.result import Findings, Machine, ProbeResult

pytest.importorskip("plotly", reason="plotly is not installed (pip install 'divtrace[plot]')")

FOUND = Findings(
    operation="linear",
    implementation="numpy gemm",
    shape="64x32 q4/32",
    dtype="float32",
    threads=1,
    row_counts=(1, 2, 4),
    changed=(2, 4),
    index_dependent=(4,),
    neighbour_dependent=(),
    padding_dependent=(),
    thread_dependent=None,
    unrepeatable=(),
    classes=((1,), (2, 4)),
    distinct_results=2,
    most_ulps=3.0,
    largest_difference=1e-6,
    time_s={1: 1e-5, 2: 2e-5, 4: 3e-5},
)
MACHINE = Machine("<b>processor</b>", 2, "cpu", "x86", "0.32.4", "2.0", "openblas", "none")


def result_of(*findings: Findings) -> ProbeResult:
    return ProbeResult(MACHINE, "random weights", 0, 1.0, findings, ())


def test_cells_hold_the_class_of_equal_bits_and_none_where_nothing_was_tried() -> None:
    other = replace(
        FOUND, row_counts=(1, 8), classes=((1, 8),), time_s={1: 1e-5, 8: 1e-5}, changed=(), index_dependent=()
    )
    (cells,) = result_of(FOUND, other).plot().data
    assert list(cells.x) == ["1", "2", "4", "8"]
    assert [list(line) for line in cells.text] == [["1", "2", "2", ""], ["1", "", "", "1"]]
    assert [list(line) for line in cells.z] == [[0, 1, 1, None], [0, None, None, 0]]
    assert cells.customdata[0][2].startswith("linear, numpy gemm, 64x32 q4/32 float32, 1 thread<br>4 rows: result 2")
    assert "depends on the row's index" in cells.customdata[0][2]
    assert cells.customdata[1][1] == ""


def test_two_lines_of_the_same_words_stay_two() -> None:
    figure = result_of(FOUND, FOUND).plot()
    assert list(figure.layout.yaxis.ticktext) == ["linear, numpy gemm, 64x32 q4/32 float32, 1 thread"] * 2
    assert len(figure.data[0].z) == 2


def test_more_classes_than_colours_are_told_apart_by_their_numbers() -> None:
    counts = tuple(range(1, len(CLASS_COLOURS) + 2))
    many = replace(FOUND, row_counts=counts, classes=tuple((n,) for n in counts), time_s=dict.fromkeys(counts, 1e-5))
    (cells,) = result_of(many).plot().data
    assert list(cells.text[0]) == [str(count) for count in counts]
    assert max(cells.z[0]) < len(CLASS_COLOURS)
    assert len(set(CLASS_COLOURS)) == len(CLASS_COLOURS)


def test_words_of_the_machine_are_text() -> None:
    title = result_of(FOUND).plot().layout.title.text
    assert "&lt;b&gt;processor&lt;/b&gt;" in title


def test_a_probe_without_findings_is_an_empty_map() -> None:
    assert len(result_of().plot().data) == 1
