"""Colours and patterns: the light ones of the HTML report, told apart with every common colour blindness."""

from __future__ import annotations

from dataclasses import dataclass

PAGE, INK, MUTED, LINE = "#ffffff", "#16191d", "#525b66", "#d5dae0"
ACCENT, MARK = "#005f96", "#b34700"
RUN_COLOURS = {"": "#0072b2", "A": "#0072b2", "B": "#c25500"}
HATCH = "rgba(0, 0, 0, .45)"
CLASS_COLOURS = ("#e3e8ee", "#e69f00", "#56b4e9", "#cc79a7", "#f0e442", "#009e73", "#b9a8d9", "#d55e00", "#999999")
"""Of classes of equal bits: the first is that of the smallest call. Cells hold the class's number too."""


@dataclass(frozen=True, slots=True)
class Look:
    """How segments of a kind look: colour, plotly's pattern shape, and the share of a lane's height that they fill."""

    colour: str
    pattern: str
    height: float


_LOOKS = {
    "prefill": Look("#0072b2", "", 0.86),
    "decode": Look("#009e73", "", 0.5),
    "verify": Look("#cc79a7", "|", 0.86),
    "recompute": Look("#d55e00", "x", 0.86),
}
_OTHER = Look("#7a7a7a", ".", 0.86)


def look_of(kind: str) -> Look:
    """The look of a segment kind; kinds that this version does not know share one."""
    return _LOOKS.get(kind, _OTHER)
