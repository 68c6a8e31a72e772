"""What a page is told about the runs: nothing lost in joining, nothing hidden in shading, nothing made up."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from divtrace.align.index import TraceIndex
from divtrace.align.runs import RunPair
from divtrace.report.bars import read_bars
from divtrace.report.build import build_pair, build_single
from divtrace.report.drift import decision_drift
from divtrace.report.kv_map import shades
from divtrace.report.page_text import PART_OF_A_CHARACTER, page_text, token_texts
from divtrace.report.requests import Budget
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from divtrace.verdict.blame import blame
from engine.batch import SegmentKind
from tests.divtrace.report.pairs import write_flip
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment

STEERING = "\x00\x1b\x7f\u202e\u2066\u200f\ufeff\u2028"


def test_bars_hold_every_segment_of_the_run(tmp_path: Path) -> None:
    for trace in (open_trace(example_run().write(tmp_path / "x.h5")), write_flip(tmp_path / "b.h5", True)):
        bars = read_bars(TraceIndex(trace))
        unfolded = {
            (bars.step[bar] + i, bars.request[bar], bars.kind[bar], bars.position[bar] + i * rows, rows)
            for bar, rows in enumerate(bars.rows)
            for i in range(bars.steps[bar])
        }
        names = ("step", "request", "kind", "first_position", "rows")
        columns = (trace.column("segments", name).tolist() for name in names)
        assert unfolded == set(zip(*columns, strict=True))
        assert bars.is_exact


def test_decode_steps_join_and_a_prefill_does_not_join_them(tmp_path: Path) -> None:
    bars = read_bars(TraceIndex(write_flip(tmp_path / "a.h5", False)))
    anchor = [(bars.kind[bar], bars.step[bar], bars.steps[bar]) for bar in range(2)]
    assert anchor == [(0, 0, 1), (1, 1, 3)]


def test_a_verification_that_steps_back_starts_a_new_bar(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("a", prompt=(5,), max_tokens=9)
    run.step(segment("a", SegmentKind.PREFILL, 0, (5,), chosen=(6,)))
    for position in (1, 3, 5):
        tokens, chosen = (6, 7, 8), (7, 9, 9)
        run.step(segment("a", SegmentKind.VERIFY, position, tokens, chosen=chosen, committed=2, proposed_tokens=2))
    bars = read_bars(TraceIndex(open_trace(run.write(tmp_path / "verify.h5"))))
    assert list(zip(bars.position, bars.rows, bars.steps, strict=True)) == [(0, 1, 1), (1, 3, 1), (3, 3, 1), (5, 3, 1)]


def test_the_page_marks_origin_carriers_and_flip(tmp_path: Path) -> None:
    a, b = write_flip(tmp_path / "a.h5", False), write_flip(tmp_path / "b.h5", True)
    report = build_pair(a, b, blame(a, b))
    focus = report.focus
    assert focus is not None
    assert report.requests[focus.request].id == "anchor"
    assert (focus.position, focus.step_a, focus.step_b, focus.flipped) == (6, 3, 3, True)
    assert [(mark.step_b, mark.positions) for mark in focus.origins] == [(1, [(3, 3)])]
    assert focus.carriers == [(4, 4)]


def test_the_kv_map_tells_equal_rows_from_differing_ones_cell_by_cell(tmp_path: Path) -> None:
    a, b = write_flip(tmp_path / "a.h5", False), write_flip(tmp_path / "b.h5", True)
    kv = build_pair(a, b, blame(a, b)).kv
    assert kv is not None
    cells = np.frombuffer(base64.b64decode(kv.cells), np.uint8).reshape(kv.positions, kv.layers)
    differing = {(int(position), int(layer)) for position, layer in zip(*np.nonzero(cells > 1), strict=True)}
    assert differing == {(3, 0), (3, 1), (4, 1)}
    assert (cells > 0).all()
    assert kv.differing_rows == 2
    assert kv.steps_b[3] == 1


def test_other_bits_show_in_the_kv_map_even_where_no_largest_element_moved() -> None:
    differs = np.array([[True, True, False, True]])
    moved = np.array([[0.0, 1e-6, 0.0, 1e-2]])
    assert shades(differs, moved, 1e-6, 1e-2).tolist() == [[2, 3, 1, 255]]
    assert shades(differs, np.zeros((1, 4)), None, None).tolist() == [[2, 2, 1, 2]]


def test_drift_of_the_margin_is_what_moved_the_two_best_tokens_against_each_other(tmp_path: Path) -> None:
    runs = RunPair(write_flip(tmp_path / "a.h5", False), write_flip(tmp_path / "b.h5", True))
    decided = runs.decisions(runs.timeline(runs.pairing.find("anchor")))
    drift = decision_drift(runs, decided)
    assert drift.margin[:-1].tolist() == [0.0, 0.0, 0.0]
    # At the flip both runs put their own token at 8 and the other's a gap of 0.001 below.
    assert drift.margin[-1] == pytest.approx(0.002, rel=1e-3)
    assert drift.largest[-1] == pytest.approx(0.001, rel=1e-3)


def test_a_run_below_level_logits_has_tokens_and_no_gaps(tmp_path: Path) -> None:
    trace = open_trace(example_run().write(tmp_path / "x.h5", level=Level.TOKENS))
    page = build_single(trace).requests[0]
    assert page.a is not None
    assert (page.a.gaps, page.a.top) == ([], None)
    assert page.a.tokens == [5, 6, 7, 9, 10, 11, 13]


def test_a_request_without_room_is_left_out_whole_and_counted() -> None:
    budget = Budget(tokens=10)
    assert [budget.take_tokens(count) for count in (6, 5, 4, 1)] == [True, False, True, False]


@given(st.text(), st.data())
def test_texts_of_tokens_put_split_characters_together_again(text: str, data: st.DataObject) -> None:
    raw = text.encode("utf-8", "surrogatepass")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    shown = [text for text in token_texts(pieces) if text != PART_OF_A_CHARACTER]
    assert "".join(shown) == "".join(token_texts([raw]))


@given(st.lists(st.one_of(st.characters(), st.sampled_from(STEERING))).map("".join))
def test_page_text_leaves_nothing_that_steers_or_hides(text: str) -> None:
    shown = page_text(text)
    assert not set(STEERING) & set(shown)
    assert page_text(shown) == shown


def test_page_text_keeps_every_script_and_emoji() -> None:
    for text in ("naïve", "日本語", "שלום", "👩‍👩‍👧", "नमस्ते", "a\nb"):
        assert page_text(text) == text
