"""Text out of a trace made safe to print: no control sequence, no reordering, no markup. Must not know traces."""

from __future__ import annotations

import unicodedata

from rich.text import Text

# Cc and Cf move the cursor, reorder or hide text (bidi overrides, zero width); Zl and Zp break lines; the
# others have no glyph.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
# Joiners that emoji and several scripts are made of; alone they show nothing and change nothing else.
_JOINERS = frozenset({"\u200c", "\u200d"})


def visible(text: str) -> str:
    """`text` on one line, control and invisible characters as backslash escapes; emoji and all scripts stay."""
    return "".join(_visible_character(character) for character in text)


def decoded(raw: bytes) -> str:
    """Bytes of tokens as text; bytes that are no whole UTF-8 character become backslash escapes."""
    return raw.decode("utf-8", errors="backslashreplace")


def excerpt(text: str, characters: int) -> str:
    """The visible form of `text`, cut to `characters` with an ellipsis."""
    shown = visible(text[: characters + 1])
    return shown if len(shown) <= characters else shown[: max(characters - 1, 0)] + "…"


def plain(text: str, style: str = "") -> Text:
    """The visible form as rich text: square brackets in it are brackets, never markup."""
    return Text(visible(text), style=style)


def _visible_character(character: str) -> str:
    if character in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[character]
    if character in _JOINERS or unicodedata.category(character) not in _HIDDEN_CATEGORIES:
        return character
    code = ord(character)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"
