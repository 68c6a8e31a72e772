"""Text out of a trace as plotly shows it and nothing else: plotly reads tags, entities and formulas in any text."""

from __future__ import annotations

from collections.abc import Iterable

from divtrace.report.page_text import page_text

_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "$": "&#36;", "\n": "↵", "\r": "↵"})
LONGEST_NAME = 28


def plotly_text(text: str, most_characters: int = 200) -> str:
    """`text` on one line with hidden characters visible, cut with an ellipsis, and with nothing left to interpret."""
    cut = text if len(text) <= most_characters else text[: most_characters - 1] + "…"
    return page_text(cut).translate(_ENTITIES)


def names(texts: Iterable[str]) -> list[str]:
    """Request ids as labels of an axis."""
    return [plotly_text(text, LONGEST_NAME) for text in texts]
