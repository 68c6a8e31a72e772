"""The proof: each run again, with one step exchanged."""

from __future__ import annotations

from docs.site.diagrams.canvas import Canvas

STEPS = 14
SUSPECT = 2
SIZE = 22
GAP = 4
LEFT = 178


def draw() -> Canvas:
    """Four strips of steps: both runs as recorded, restore and induce."""
    canvas = Canvas(
        760,
        372,
        "The proof by re-running: restore and induce",
        "Run A with its own kernels commits A's token, run B commits B's. B again with A's kernels in the suspect step "
        "alone commits A's token; A again with B's kernels there commits B's. The step is the cause, both ways.",
    )
    canvas.text(_x(SUSPECT) + SIZE / 2, 30, "suspect step", "small muted middle")
    canvas.text(_x(STEPS) + 46, 30, "token at the split", "small muted middle")
    canvas.path([(_x(SUSPECT) + SIZE / 2, 38), (_x(SUSPECT) + SIZE / 2, 292)], "line dashed")
    _strip(canvas, 50, "run A", "as recorded", "a", "a")
    _strip(canvas, 110, "run B", "as recorded", "b", "b")
    canvas.path([(24, 172), (736, 172)], "line")
    _strip(canvas, 190, "restore", "B, with A's choice there", "b", "a")
    _strip(canvas, 250, "induce", "A, with B's choice there", "a", "b")
    words = [
        "Everything else is played back as it was: schedule, blocks, proposals, tokens.",
        "Done twice: once the kernels of that step are exchanged, once its K/V rows. Both must agree.",
    ]
    canvas.lines(24, 330, words, "small muted", leading=20)
    return canvas


def _x(step: int) -> float:
    return LEFT + step * (SIZE + GAP)


def _strip(canvas: Canvas, y: float, name: str, words: str, base: str, suspect: str) -> None:
    """Steps drawn in the colour of the run that they behave as; the outcome follows the suspect step."""
    canvas.text(24, y + 12, name, "bold")
    canvas.text(24, y + 29, words, "small muted")
    styles = ["a-soft" if base == "a" else "b-soft"] * STEPS
    styles[SUSPECT] = suspect
    canvas.cells(LEFT, y + 4, styles, SIZE, GAP)
    canvas.text(_x(SUSPECT) + SIZE / 2, y + 20, suspect.upper(), "bold on middle small")
    canvas.path([(_x(STEPS) + 2, y + 15), (_x(STEPS) + 22, y + 15)], "line", "line")
    canvas.rect(_x(STEPS) + 28, y + 2, 104, 27, suspect)
    canvas.text(_x(STEPS) + 80, y + 20, f"{suspect.upper()}'s token", "bold on middle")
