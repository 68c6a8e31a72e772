from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from divtrace.errors import DivtraceError
from divtrace.probing import LinearShape, ProbeRequest, ProbeResult, render_html, render_table, run_probe
from divtrace.probing.ranges import spoken

SHAPE = LinearShape(64, 24)
COUNTS = (1, 2, 3, 8, 9)


@pytest.fixture(scope="module")
def result() -> ProbeResult:
    return run_probe(ProbeRequest(shapes=(SHAPE,), row_counts=COUNTS, budget_s=120.0))


def test_every_operation_is_probed(result: ProbeResult) -> None:
    operations = {found.operation for found in result.findings}
    assert operations == {
        "rms_norm",
        "layer_norm",
        "softmax",
        "rope",
        "attention",
        "matmul",
        "gather_qmm",
        "quantized_matmul",
        "linear",
    }
    assert result.not_run == ()
    assert all(found.row_counts == COUNTS for found in result.findings)


def test_our_own_kernels_are_found_row_invariant(result: ProbeResult) -> None:
    ours = [found for found in result.findings if found.implementation in ("invariant", "numpy gemv")]
    assert len(ours) >= 3
    assert all(found.is_row_invariant for found in ours)


def test_what_mlx_s_tables_predict_stands_beside_the_finding(result: ProbeResult) -> None:
    native = next(found for found in result.findings if found.operation == "quantized_matmul")
    assert len(native.labels) == len(COUNTS)


def test_the_same_request_finds_the_same(result: ProbeResult) -> None:
    again = run_probe(ProbeRequest(shapes=(SHAPE,), row_counts=COUNTS, budget_s=120.0))
    assert [replace(found, time_s={}) for found in again.findings] == [
        replace(found, time_s={}) for found in result.findings
    ]


def test_the_result_becomes_json_and_a_page_that_needs_no_network(result: ProbeResult) -> None:
    values = json.loads(json.dumps(result.to_json()))
    assert values["findings"][0]["row_counts"] == list(COUNTS)
    page = render_html(result)
    parser = HTMLParser()
    parser.feed(page)
    assert page.count("<rect") == len(COUNTS) * len(result.findings)
    assert "http" not in page


def test_the_table_names_each_case_and_its_tile(result: ProbeResult) -> None:
    console = Console(width=200, record=True, file=StringIO())
    console.print(render_table(result))
    text = console.export_text()
    assert "quantized_matmul" in text
    assert "tile" in text
    assert result.machine.blas.split()[0] in text


def test_the_table_proposes_one_tile_for_all_shapes_or_says_that_none_holds(result: ProbeResult) -> None:
    case = next(found for found in result.findings if found.implementation == "numpy gemm")
    held = replace(case, index_dependent=(3, 8, 9), neighbour_dependent=(), unrepeatable=())
    for other, words in (
        (held, "tile:2 holds for all of these shapes"),
        (replace(held, index_dependent=COUNTS), "no row count holds for all"),
    ):
        console = Console(width=200, record=True, file=StringIO())
        console.print(render_table(replace(result, findings=(held, other))))
        assert words in console.export_text().splitlines()[-2]


def test_recorded_activations_are_used_in_place_of_random_rows() -> None:
    seen: list[str] = []
    request = ProbeRequest(
        shapes=(SHAPE,),
        row_counts=(1, 2),
        implementations=("numpy gemv",),
        activations={64: np.full((1, 64), 0.5, np.float32)},
    )
    result = run_probe(request, lambda name, done, total: seen.append(f"{done}/{total} {name}"))
    assert result.findings[0].is_row_invariant
    assert seen[0].startswith("0/")
    with pytest.raises(DivtraceError, match="activations for input size 64"):
        run_probe(replace(request, activations={64: np.ones((2, 63), np.float32)}))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"row_counts": ()}, "row counts must rise"),
        ({"row_counts": (2, 2)}, "row counts must rise"),
        ({"row_counts": (0, 1)}, "row counts must rise"),
        ({"row_counts": (1, 5000)}, "row counts must rise"),
        ({"budget_s": 0.0}, "budget"),
        ({"shapes": (LinearShape(0, 4),)}, "no elements"),
        ({"shapes": (LinearShape(33, 4),)}, "whole groups"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(settings: dict[str, object], sentence: str) -> None:
    with pytest.raises(DivtraceError, match=sentence):
        ProbeRequest(**settings)  # type: ignore[arg-type]


def test_a_filter_that_leaves_nothing_is_refused() -> None:
    with pytest.raises(DivtraceError, match="no case matches"):
        run_probe(ProbeRequest(shapes=(SHAPE,), operations=("convolution",)))


def test_row_counts_are_spoken_in_runs_of_those_tried() -> None:
    tried = (1, 2, 3, 4, 8, 9, 16)
    assert spoken((), tried) == "none"
    assert spoken(tried, tried) == "all"
    assert spoken((2, 3, 8, 9, 16), tried) == "2-3, 8-16"
    assert spoken((1, 3, 8, 16), tried, most_parts=2) == "1, 3 and 2 more"
