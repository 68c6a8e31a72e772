"""What each level of a trace holds, and the question that it can answer."""

from __future__ import annotations

from docs.site.diagrams.canvas import Canvas

LEVELS = (
    ("tokens", "what was committed, batches, kernel paths, settings", "where do the texts split?"),
    ("logits", "+ the largest logits of each decision, its gap, its random number", "do logits explain the token?"),
    ("kv", "+ a 64-bit hash of each K/V row, and who wrote what is read", "where did the first difference come from?"),
    ("tensors", "+ whole arrays at chosen layers, steps and requests", "what exactly was computed there?"),
)
INDENT = 24
STEP = 62


def draw() -> Canvas:
    """Boxes inside boxes: a higher level holds all of a lower one."""
    height = 46 + STEP * len(LEVELS)
    canvas = Canvas(
        760,
        height,
        "The levels of a trace",
        "Four levels, each holding all of the one before: tokens, logits, kv, tensors; and the question each answers.",
    )
    canvas.text(24, 28, "level", "small muted")
    canvas.text(130, 28, "what it holds", "small muted")
    canvas.text(736, 28, "the question it answers", "small muted end")
    for number, (name, holds, answers) in enumerate(LEVELS):
        y = 40 + number * STEP
        canvas.rect(16, y, 728, STEP - 10, "a-soft" if name == "kv" else "box")
        for earlier in range(number + 1):
            canvas.rect(24 + earlier * 7, y + 30, 5, 12, "a", corner=1)
        canvas.text(24, y + 21, name, "bold code")
        canvas.text(130, y + 21, holds, "ink")
        canvas.text(736, y + 41, answers, "small muted end")
    return canvas
