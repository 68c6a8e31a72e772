"""Foreign text in a figure is text: no tag, entity or formula of it reaches plotly; colours are the report's."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import divtrace.report
from divtrace.figures.palette import ACCENT, MARK, RUN_COLOURS, look_of
from divtrace.figures.text import LONGEST_NAME, names, plotly_text
from divtrace.report.page_text import page_text

CSS = (Path(divtrace.report.__file__).parent / "assets" / "report.css").read_text(encoding="utf-8")


@given(st.text(max_size=60))
def test_nothing_is_left_to_interpret_and_nothing_is_lost(text: str) -> None:
    shown = plotly_text(text)
    assert not set("<>$\n\r") & set(shown)
    assert html.unescape(shown) == page_text(text).replace("\n", "↵").replace("\r", "↵")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("<b>bold</b>", "&lt;b&gt;bold&lt;/b&gt;"),
        ("&lt;", "&amp;lt;"),
        ("$x^2$", "&#36;x^2&#36;"),
        ("a\nb", "a↵b"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_tags_entities_formulas_and_hidden_characters_are_shown(text: str, shown: str) -> None:
    assert plotly_text(text) == shown


def test_a_long_text_is_cut_before_it_is_escaped() -> None:
    assert plotly_text("<" * 300, 10) == "&lt;" * 9 + "…"
    assert names(["r" * 99]) == ["r" * (LONGEST_NAME - 1) + "…"]


@pytest.mark.parametrize("kind", ["prefill", "decode", "verify", "recompute", "other"])
def test_kinds_have_the_colours_of_the_report(kind: str) -> None:
    assert look_of(kind).colour == _light(kind)


def test_runs_and_marks_have_the_colours_of_the_report() -> None:
    assert (RUN_COLOURS["A"], RUN_COLOURS["B"]) == (_light("run-a"), _light("run-b"))
    assert (_light("accent"), _light("mark")) == (ACCENT, MARK)


def test_kinds_can_be_told_apart_without_colour() -> None:
    looks = [look_of(kind) for kind in ("prefill", "decode", "verify", "recompute", "other")]
    assert len({(look.pattern, look.height) for look in looks}) == len(looks)


def _light(name: str) -> str:
    found = re.search(rf"--{name}: (#[0-9a-f]{{6}})", CSS)
    assert found is not None, name
    return found.group(1)
