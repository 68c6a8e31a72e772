"""The heat map of a probe for the terminal: one letter a result, so that it reads without colour. Must not measure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_letters

from rich.text import Text

from divtrace.probing.result import Findings, class_of
from divtrace.probing.words import case_words, wrapped_case
from divtrace.render.text import counted

CLASS_COLOURS = (
    "green",
    "red",
    "yellow",
    "blue",
    "magenta",
    "cyan",
    "bright_red",
    "bright_yellow",
    "bright_blue",
)
NOT_TRIED, BEYOND_LETTERS = ".", "+"
GAP = "  "
LEAST_LABEL = 30
"""Columns below which a kernel's words stand above their line."""
LEGEND = (
    "Read a line so: a is the result at the smallest row count, and one letter is one result of row 0, bit for bit;"
    " b, c, ... are other bits. A dot was not tried."
)


def render_heat_map(findings: Sequence[Findings], width: int) -> Iterator[Text]:
    """One line a kernel that has more than one result, one letter a row count; those with one result are counted.

    Row counts that do not fit `width` columns go on in a further block.
    """
    several = [found for found in findings if len(found.classes) > 1]
    if several:
        yield Text("Results of row 0 by the number of rows in the call", style="bold")
        counts = sorted({count for found in several for count in found.row_counts})
        label_width = _label_width(several, width - len(GAP) - len(counts))
        size = max(1, width - len(GAP) - label_width)
        for first in range(0, len(counts), size):
            yield from _block(several, counts[first : first + size], label_width)
        yield Text(LEGEND, style="dim")
    same = len(findings) - len(several)
    if same:
        yield Text(f"{counted(same, 'kernel')} gave one result at every row count tried.", style="dim")
    yield Text("")


def _label_width(findings: Sequence[Findings], room: int) -> int:
    """Columns for a kernel's words beside its letters; 0 where they stand above them."""
    longest = max(len(case_words(found)) for found in findings)
    return min(longest, room) if room >= min(longest, LEAST_LABEL) else 0


def _block(findings: Sequence[Findings], counts: Sequence[int], label_width: int) -> Iterator[Text]:
    yield Text(("rows".ljust(label_width) if label_width else "") + GAP + _axis(counts), style="dim")
    for found in findings:
        if label_width == 0:
            yield Text(case_words(found))
            yield Text(GAP).append_text(_strip(found, counts))
            continue
        first, *more = wrapped_case(found, label_width)
        yield Text(first.ljust(label_width) + GAP).append_text(_strip(found, counts))
        for line in more:
            yield Text(line)


def _axis(counts: Sequence[int]) -> str:
    """Row counts written from where their cell is: the first, then multiples of eight where there is room."""
    axis = ""
    for place, count in enumerate(counts):
        if place == 0 or (count % 8 == 0 and len(axis) < place <= len(counts) - len(str(count))):
            axis = axis.ljust(place) + str(count)
    return axis


def _strip(found: Findings, counts: Sequence[int]) -> Text:
    strip = Text()
    for count in counts:
        if count not in found.row_counts:
            strip.append(NOT_TRIED, style="dim")
            continue
        place = class_of(found, count)
        letter = ascii_letters[place] if place < len(ascii_letters) else BEYOND_LETTERS
        strip.append(letter, style=f"black on {CLASS_COLOURS[place % len(CLASS_COLOURS)]}")
    return strip
