from __future__ import annotations

import io

import pytest
from rich.console import Console

from divtrace.probing.heat_map import LEGEND, render_heat_map
from divtrace.probing.result import Findings
from tests.divtrace.probing.findings import CUT, RESULT, findings, gemm


def lines_of(found: tuple[Findings, ...], width: int = 80) -> list[str]:
    return [str(line) for line in render_heat_map(found, width)]


def test_without_colour_a_letter_tells_one_result_from_another() -> None:
    lines = lines_of((gemm(1), CUT))
    assert lines[1].split() == ["rows", "1", "8", "16"]
    assert lines[2].split()[-1] == "abbbccddd"
    assert next(line for line in lines if line.startswith("gather_qmm")).split()[-1] == "ab......."
    assert LEGEND in lines


def test_row_counts_are_written_where_their_letter_is() -> None:
    counts = tuple(range(1, 41))
    found = findings("linear", "8x8", row_counts=counts, classes=(counts[:7], counts[7:]))
    _, axis, strip, *_ = lines_of((found,))
    assert axis.index("8") == strip.rindex("ab") + 1


def test_kernels_with_one_result_are_counted_and_have_no_line() -> None:
    same = findings("rms_norm", "576")
    assert lines_of((same, same)) == ["2 kernels gave one result at every row count tried.", ""]
    assert not any(line.startswith("rms_norm") for line in lines_of(RESULT.findings))


@pytest.mark.parametrize("width", [20, 45, 60, 80, 160])
def test_row_counts_that_do_not_fit_go_on_in_another_block_and_all_are_there(width: int) -> None:
    counts = tuple(range(1, 121))
    found = findings("linear", "8x8", row_counts=counts, classes=(counts[::2], counts[1::2]))
    lines = lines_of((found,), width)
    strips = [line.split()[-1] for line in lines if line]
    assert "".join(strip for strip in strips if set(strip) <= {"a", "b"}) == "ab" * 60
    drawn = [line for line in lines[1:] if "result" not in line and not line.startswith("linear 8x8 float32 (mlx)")]
    assert max(map(len, drawn)) <= width


def test_a_terminal_with_colours_gets_both_letter_and_colour() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, color_system="standard", width=80, highlight=False)
    for line in render_heat_map((gemm(1),), 80):
        console.print(line)
    assert "\x1b[30;42ma" in out.getvalue()
    assert "\x1b[30;41mb" in out.getvalue()


def test_more_results_than_letters_end_in_a_plus() -> None:
    counts = tuple(range(1, 61))
    found = findings("linear", "8x8", row_counts=counts, classes=tuple((count,) for count in counts))
    strip = lines_of((found,), 160)[2].split()[-1]
    assert strip.startswith("abc")
    assert strip.endswith("YZ++++++++")


def test_the_case_s_words_are_whole_beside_or_above_its_letters() -> None:
    for width in (45, 80, 160):
        text = " ".join(" ".join(lines_of((gemm(16),), width)).split())
        assert "(numpy gemm, 16 threads)" in text
