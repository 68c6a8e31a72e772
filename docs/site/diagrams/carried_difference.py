"""The difference waits in the K/V cache until a gap is smaller than it. A sketch: no scale is on its axes."""

from __future__ import annotations

import math

from docs.site.diagrams.canvas import Canvas

POSITIONS = 31
ORIGIN = 4
LEAVES = 9
FLIP = 27
LEFT = 66
PITCH = 21.9
FLOOR = 284


def draw() -> Canvas:
    """K/V rows by position above; gap and drift of each decision below."""
    canvas = Canvas(
        760,
        340,
        "The difference stays in the K/V cache until a near tie",
        "K/V rows differ from the origin on. The drift of the logits stays about the same and changes no token, "
        "because every gap is larger. At the flip the gap is smaller than the drift; the neighbour left long before.",
    )
    canvas.text(24, 30, "K/V rows of the anchor, by position", "bold")
    for position in range(POSITIONS):
        if position < FLIP:
            canvas.rect(_x(position) - 8, 44, 17, 24, "differs" if position >= ORIGIN else "plain", corner=2)
    canvas.text(24, 104, "At each decision", "bold")
    canvas.rect(150, 92, 8, 14, "a-soft", corner=1)
    canvas.text(166, 104, "gap between the two best tokens", "small")
    canvas.path([(374, 99), (398, 99)], "b-line wide")
    canvas.text(406, 104, "drift of their logits between the runs", "small")
    canvas.path([(LEFT - 18, 122), (LEFT - 18, FLOOR), (_x(POSITIONS - 1) + 14, FLOOR)], "line")
    canvas.text(LEFT - 24, 138, "log", "small muted end")
    for position in range(POSITIONS):
        if position <= FLIP:
            style = "a" if position == FLIP else "a-soft"
            canvas.rect(_x(position) - 4, _gap_y(position), 8, FLOOR - _gap_y(position), style, corner=1)
    drift = [(_x(p), _drift_y(p)) for p in range(ORIGIN, FLIP + 1)]
    canvas.path(drift, "b-line wide")
    _mark(canvas, ORIGIN, "origin: a prefill joins", "other kernel, first row differs")
    _mark(canvas, LEAVES + 4, "neighbour has left", "nothing is unusual any more")
    _mark(canvas, FLIP, "flip: gap below drift", "the other token wins")
    return canvas


def _x(position: int) -> float:
    return LEFT + position * PITCH


def _gap_y(position: int) -> float:
    wave = math.sin(position * 2.3) + 0.7 * math.sin(position * 5.1 + 1)
    return 253.0 if position == FLIP else 168 - 16 * wave


def _drift_y(position: int) -> float:
    return 232 - 6 * math.sin(position * 1.7) - 3 * math.sin(position * 4.3)


def _mark(canvas: Canvas, position: int, words: str, more: str) -> None:
    canvas.path([(_x(position), 70), (_x(position), 82)], "line")
    canvas.path([(_x(position), 116), (_x(position), FLOOR + 14)], "line dashed")
    where = min(max(_x(position), 100), 660)
    canvas.text(where, FLOOR + 28, words, "bold small middle")
    canvas.text(where, FLOOR + 44, more, "small muted middle")
