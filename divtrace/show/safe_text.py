"""Text out of a trace made safe to print: one line, no control sequence, no markup. Must not know traces."""

from __future__ import annotations

from rich.text import Text

from divtrace.render.text import visible


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
