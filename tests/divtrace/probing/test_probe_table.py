from __future__ import annotations

from dataclasses import replace

import pytest

from divtrace.probing.result import Findings, ProbeResult, TileProposal
from divtrace.probing.table import render_table
from divtrace.probing.words import case_words, wrapped_case
from divtrace.render.text import plain
from tests.divtrace.probing.findings import COUNTS, CUT, RESULT, findings, gemm

WIDTHS = (60, 80, 100, 160)


def lines_of(result: ProbeResult, width: int) -> list[str]:
    return plain(render_table(result), width).splitlines()


def table_of(result: ProbeResult, width: int) -> list[str]:
    """Lines below the titles, up to the caption."""
    lines = lines_of(result, width)
    first = next(place for place, line in enumerate(lines) if line.startswith("───"))
    return lines[first + 1 : next(place for place, line in enumerate(lines) if line.startswith("results:"))]


def of(*found: Findings) -> ProbeResult:
    return replace(RESULT, findings=found)


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(width: int) -> None:
    lines = lines_of(RESULT, width)
    assert max(map(len, lines)) <= width
    words = {word for line in lines for word in line.split()}
    expected = {word for found in RESULT.findings for word in case_words(found).split()}
    assert expected <= words
    assert {"kernel", "results", "index", "threads", "padding"} <= words
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_kernel_s_rows_and_results_stand_on_its_first_line(width: int) -> None:
    (line,) = (line for line in table_of(RESULT, width) if line.startswith("matmul 576x1536"))
    cells = line.removeprefix("matmul 576x1536 float32 (mlx)").split()
    assert cells[:4] == ["2,", "9,", "32", "2"]


def test_eighty_columns_show_ulps_and_times_and_wrap_the_kernel_s_words_alone() -> None:
    lines = table_of(of(gemm(16)), 80)
    assert lines[0].split() == ["linear", "576x49152", "q8/32", "float32", "2-32", "4", "10.0", "0.010", "0.320"]
    assert lines[1].strip() == "(numpy gemm, 16 threads)"


@pytest.mark.parametrize("width", [27, 40, 50, 52])
def test_who_runs_a_kernel_stays_on_one_line(width: int) -> None:
    lines = wrapped_case(gemm(16), width)
    assert lines[-1].endswith("(numpy gemm, 16 threads)")
    assert max(map(len, lines)) <= width
    assert " ".join(" ".join(lines).split()) == case_words(gemm(16))


def test_a_wide_terminal_keeps_each_kernel_on_one_line_and_shows_more_times() -> None:
    line, *empty = table_of(of(findings("attention", "9/3 heads of 64, 256 keys, causal")), 160)
    assert not any(empty)
    assert line.startswith("attention 9/3 heads of 64, 256 keys, causal float32 (mlx)")
    assert line.split()[-5:] == ["0.010", "0.080", "0.320", "-", "0.320"]


@pytest.mark.parametrize("width", WIDTHS)
def test_other_dependences_are_named_only_where_there_are_any(width: int) -> None:
    text = " ".join(" ".join(table_of(RESULT, width)).split())
    assert text.count("depends on") == 2
    assert "depends on index 3, 7, 9-32; padding 1-3, 7, 9; threads 4, 9" in text
    assert "depends" not in " ".join(table_of(of(findings("rms_norm", "576")), width))


@pytest.mark.parametrize("width", WIDTHS)
def test_a_kernel_whose_time_was_spent_says_how_far_it_came(width: int) -> None:
    text = " ".join(" ".join(table_of(of(CUT), width)).split())
    assert "tried up to 2 rows" in text
    assert "700" in text


def test_a_long_list_of_rows_is_cut_to_its_column_and_counted() -> None:
    counts = tuple(range(1, 41))
    found = findings("matmul", "8x8", row_counts=counts, changed=counts[11::2], classes=(counts,))
    line, *_ = table_of(of(found), 80)
    assert "12 and 14 more" in line


def test_one_sentence_says_how_many_kernels_changed() -> None:
    assert "4 of 6 kernels changed a row's bits when other rows were in the call." in lines_of(RESULT, 80)
    quiet = of(findings("softmax", "8"))
    assert "No kernel changed a row's bits at the row counts tried." in lines_of(quiet, 80)


def test_tiles_of_equal_sizes_share_a_line() -> None:
    tiles = tuple(TileProposal("linear", "numpy gemm", shape, 1, (2, 4, 8), 8) for shape in ("8x8", "8x16"))
    (line,) = (line for line in lines_of(replace(RESULT, tiles=tiles), 80) if line.startswith("tile:8"))
    assert line == "tile:8 (holds at 2, 4, 8) by numpy gemm on 1 thread: 8x8, 8x16"


def test_cases_that_were_not_run_are_named_in_whole() -> None:
    lines = lines_of(replace(RESULT, not_run=(case_words(gemm(1)), case_words(gemm(16)))), 200)
    named = (
        "linear 576x49152 q8/32 float32 (numpy gemm, 1 thread); linear 576x49152 q8/32 float32 (numpy gemm, 16 threads)"
    )
    assert f"not run for lack of time: {named}" in lines


def test_row_counts_without_one_row_have_no_time_at_one_row() -> None:
    found = findings("softmax", "8", row_counts=COUNTS[1:], classes=(COUNTS[1:],), time_s={32: 1e-3, 2: 1e-3})
    assert table_of(of(found), 80)[0].split()[-2:] == ["-", "1.00"]
