"""From the flipped decision back to the first record whose inputs are equal and whose output is not."""

from __future__ import annotations

from itertools import pairwise

from docs.site.diagrams.canvas import Canvas

LAYERS = 4
COLUMNS = 12
ORIGIN = 3
SIZE = 30
GAP = 6
LEFT = 132
TOP = 70


def draw() -> Canvas:
    """A grid of K/V rows, layer by position, with the walk drawn in."""
    canvas = Canvas(
        760,
        330,
        "The walk back from the flip to the origin",
        "The decision reads the K/V rows of all earlier positions. Rows that differ were computed from rows that "
        "differ, back to one position: there, in layer 0, the inputs are equal and the output is not: the origin.",
    )
    canvas.text(24, 24, "K/V rows of one request, run A against run B", "bold")
    for layer in range(LAYERS):
        y = _y(layer)
        canvas.text(LEFT - 14, y + 20, f"layer {layer}", "small muted end")
        canvas.cells(LEFT, y, [_style(layer, column) for column in range(COLUMNS)], SIZE, GAP)
    canvas.text(LEFT, 238, "position →", "small muted")
    canvas.rect(_x(COLUMNS) + 24, TOP, 118, 4 * (SIZE + GAP) - GAP, "b-soft")
    canvas.lines(_x(COLUMNS) + 38, TOP + 40, ["the decision:", "A and B commit", "other tokens"], "ink")
    for start, end in pairwise((COLUMNS + 1, 10, 8, 6, ORIGIN)):
        _hop(canvas, start, end)
    canvas.text(_x(7) + SIZE / 2, 44, "computed from rows that differ: go on", "small b middle")
    x = _x(ORIGIN)
    canvas.rect(x - 4, _y(0) - 4, SIZE + 8, SIZE + 8, "b-line wide", corner=5)
    canvas.path([(x + 15, 254), (x + 15, _y(0) + SIZE + 8)], "b-line wide", "b")
    canvas.text(x + 15, 276, "origin: inputs equal, output not", "bold middle")
    canvas.text(x + 15, 294, "another kernel ran here", "small muted middle")
    canvas.cells(500, 262, ["plain"], 16)
    canvas.text(524, 275, "equal bit for bit", "small")
    canvas.cells(500, 288, ["differs"], 16)
    canvas.text(524, 301, "differs: a carrier, not a cause", "small")
    return canvas


def _x(column: int) -> float:
    return LEFT + column * (SIZE + GAP)


def _y(layer: int) -> float:
    return TOP + (LAYERS - 1 - layer) * (SIZE + GAP)


def _style(layer: int, column: int) -> str:
    """Layer 0 is made from token ids alone, so behind the origin it is equal again; all above it reads what differs."""
    differs = column == ORIGIN or (column > ORIGIN and layer > 0)
    return "differs" if differs else "plain"


def _hop(canvas: Canvas, start: int, end: int) -> None:
    left, right = _x(end) + SIZE / 2 + 3, _x(start) + SIZE / 2 - 3
    canvas.arc((right, TOP - 4), (left, TOP - 4), 22, "b-line", "b")
