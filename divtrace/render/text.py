"""Words, numbers and foreign text made safe and short for a terminal. Token texts come from models and from
strangers' files.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType

from divtrace.divergence.records import Token
from divtrace.origin.records import PositionRange

LONGEST_TOKEN_TEXT = 32
LEFT_TO_RIGHT_MARK = "\u200e"
_SHORT_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", '"': '\\"'}
_RIGHT_TO_LEFT = frozenset({"R", "AL", "AN"})
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def visible(text: str) -> str:
    """Text with every control, format, private and unassigned character escaped: nothing can steer the terminal.

    Text written right to left gets a mark behind it, so that it does not turn the rest of its line around.
    """
    shown = "".join(_SHORT_ESCAPES.get(c) or (_escape(c) if _is_hidden(c) else c) for c in text)
    turns = any(unicodedata.bidirectional(character) in _RIGHT_TO_LEFT for character in shown)
    return shown + LEFT_TO_RIGHT_MARK if turns else shown


def name(text: str) -> str:
    """A request id, run name or path, made visible."""
    return visible(text.replace("\\", "/")) if text else "(unnamed)"


def quoted(token: Token) -> str:
    """A token as its text in quotes and its id: `" the" (476)`."""
    text = token.text if len(token.text) <= LONGEST_TOKEN_TEXT else token.text[:LONGEST_TOKEN_TEXT] + "…"
    return f'"{visible(text)}" ({token.id})'


def logit(value: float | None) -> str:
    """A logit or a margin with the digits that a float32 carries."""
    return "-" if value is None else f"{value:.6f}"


def drift(value: float | None) -> str:
    """A difference, in few digits."""
    return "-" if value is None else f"{value:+.3g}"


def counted(count: int, word: str, many: str = "") -> str:
    """`1 row`, `2 rows`, `1,234 rows`."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def positions(ranges: Sequence[PositionRange], most: int = 4) -> str:
    """`position 7`, `positions 3 to 6, 9`; long lists end in how many parts were left out."""
    parts = [str(r.first) if r.first == r.last else f"{r.first} to {r.last}" for r in ranges]
    word = "position" if len(ranges) == 1 and ranges[0].first == ranges[0].last else "positions"
    left_out = len(parts) - most
    return f"{word} {', '.join(parts[:most])}" + (f" and {left_out} more ranges" if left_out > 0 else "")


def listed(words: Iterable[str], most: int = 6) -> str:
    """`a, b and c`, with a count for what is left out."""
    items = list(words)
    if len(items) > most:
        items = [*items[: most - 1], f"{len(items) - most + 1} more"]
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else "none"


def steps_named(steps: Iterable[int], most: int = 12) -> str:
    """`step 2`, `steps 2, 3 and 7`; a long set as its ranges, `steps 2 to 40 and 43`. A set has one name everywhere."""
    ordered = sorted(set(steps))
    parts = [str(step) for step in ordered]
    if len(parts) > most:
        starts = [step for step in ordered if step - 1 not in ordered]
        ends = [step for step in ordered if step + 1 not in ordered]
        spans = zip(starts, ends, strict=True)
        parts = [str(first) if first == last else f"{first} to {last}" for first, last in spans]
    return f"step{'s' if len(ordered) > 1 else ''} {listed(parts, most)}"


def plain(renderable: RenderableType, width: int = 80) -> str:
    """What a terminal of this width without colours shows, without trailing blanks."""
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, markup=False, highlight=False, emoji=False)
    console.print(renderable)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN_CATEGORIES


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
