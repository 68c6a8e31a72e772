"""Text of tokens as a page shows it: characters that steer or hide are escapes, split characters are put together."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator

from divtrace.render.text import visible

# Joiners and the variation selectors' base: emoji and several scripts are made of them, and they steer nothing.
_KEPT = frozenset("\n\u200c\u200d")
_ORDINARY = re.compile(r"[\x20-\x7e\u00a1-\u00ac\u00ae-\u0377]*")
PART_OF_A_CHARACTER = "\u25cc"


def page_text(text: str) -> str:
    """`text` with control, bidirectional and unassigned characters as backslash escapes; line ends stay."""
    if _ORDINARY.fullmatch(text):
        return text
    return "".join(c if c in _KEPT or _ORDINARY.fullmatch(c) else visible(c).rstrip("\u200e") for c in text)


def token_texts(pieces: Iterable[bytes]) -> Iterator[str]:
    """One text a token. A character whose bytes lie in several tokens is shown with the last; the others show `◌`."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="backslashreplace")
    for piece in pieces:
        text = decoder.decode(piece)
        yield page_text(text) if text or not piece else PART_OF_A_CHARACTER


def short_text(text: str, characters: int = 60) -> str:
    """`text` for a sentence: visible, and cut with an ellipsis."""
    return page_text(text if len(text) <= characters else text[:characters] + "…")
