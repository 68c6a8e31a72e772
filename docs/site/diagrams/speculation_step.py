"""Who speaks when in a step with speculation."""

from __future__ import annotations

from docs.site.diagrams.canvas import Canvas

LANES = {"engine": 380, "drafter": 120, "target": 640}
MESSAGES = (
    ("engine", "drafter", "propose, for all decoding requests"),
    ("drafter", "engine", "up to K tokens each"),
    ("engine", "target", "one packed forward of all rows"),
    ("target", "engine", "logits"),
    ("engine", "engine", "process rows, verify, commit"),
    ("engine", "drafter", "committed, rolled back"),
)


def draw() -> Canvas:
    """Three lanes with messages from top to bottom."""
    height = 80 + 42 * len(MESSAGES)
    canvas = Canvas(
        760,
        height,
        "Speculation in one step",
        "The engine asks the drafter for proposals, packs prefills, decodes and verifications into one forward of the "
        "target, verifies and commits, and tells the drafter what was committed and rolled back.",
    )
    for name, x in LANES.items():
        canvas.rect(x - 60, 16, 120, 30, "box")
        canvas.text(x, 36, name, "bold middle")
        canvas.path([(x, 46), (x, height - 16)], "line dashed")
    for number, (source, target, words) in enumerate(MESSAGES):
        y = 84 + 42 * number
        start, end = LANES[source], LANES[target]
        if source == target:
            canvas.rect(start - 112, y - 20, 224, 30, "a-soft")
            canvas.text(start, y, words, "middle")
        else:
            canvas.path([(start, y), (end + (4 if end < start else -4), y)], "a-line wide", "a")
            canvas.text((start + end) / 2, y - 8, words, "middle small")
    return canvas
