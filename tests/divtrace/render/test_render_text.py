"""Foreign text on a terminal: nothing steers it, turns it around or is read as markup."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from divtrace.divergence.records import Token
from divtrace.origin.records import PositionRange
from divtrace.render.text import LEFT_TO_RIGHT_MARK, counted, listed, plain, positions, quoted, steps_named, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("line\nbreak\ttab", "line\\nbreak\\ttab"),
        ("\u202eturned", "\\u202eturned"),
        ("zero\u200bwidth", "zero\\u200bwidth"),
        ("\U000e0041", "\\U000e0041"),
        (' the "word"', ' the \\"word\\"'),
        ("[bold]x[/bold]", "[bold]x[/bold]"),
        ("שלום", "שלום" + LEFT_TO_RIGHT_MARK),
    ],
)
def test_hidden_characters_are_escaped_and_others_kept(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text())
def test_no_hidden_character_is_left_in_any_text(text: str) -> None:
    shown = visible(text).removesuffix(LEFT_TO_RIGHT_MARK)
    assert not [c for c in shown if unicodedata.category(c)[0] == "C" or unicodedata.category(c) in ("Zl", "Zp")]


def test_markup_in_a_text_is_printed_and_not_obeyed() -> None:
    assert plain(Text(visible("[bold red]x[/] [link=http://y]z"))) == "[bold red]x[/] [link=http://y]z\n"


def test_a_token_is_its_text_and_its_id_and_never_long() -> None:
    assert quoted(Token(476, " the")) == '" the" (476)'
    assert len(quoted(Token(1, "x" * 10_000))) < 60


def test_lists_ranges_and_counts_read_as_words() -> None:
    assert counted(1, "row") == "1 row"
    assert counted(1234, "row") == "1,234 rows"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert listed("abcdefgh", most=3) == "a, b and 6 more"
    assert positions([PositionRange(3, 3)]) == "position 3"
    assert positions([PositionRange(3, 5), PositionRange(9, 9)], most=1) == "positions 3 to 5 and 1 more ranges"


def test_a_set_of_steps_has_one_name_and_a_long_one_its_ranges() -> None:
    assert steps_named([2]) == steps_named([2, 2]) == "step 2"
    assert steps_named([13, 2, 9]) == "steps 2, 9 and 13"
    assert steps_named(range(1, 13)).endswith("10, 11 and 12")
    assert steps_named([*range(5, 40), 43]) == "steps 5 to 39 and 43"
    assert steps_named(range(0, 60, 2)) == "steps 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20 and 19 more"
