"""The same row by two kernels: alone, and in the company of a prefill."""

from __future__ import annotations

from docs.site.diagrams.canvas import Canvas

ROWS_SHOWN = 7


def draw() -> Canvas:
    """Two steps side by side, one of them over the threshold."""
    canvas = Canvas(
        760,
        330,
        "The kernel path changes with the batch",
        "Alone, the anchor's one row goes through GEMV. When a follower's prefill of 31 rows joins, 32 rows are over "
        "the threshold of 4 and all of them go through GEMM. The anchor's row is the same, its sum is not.",
    )
    _step(canvas, 24, "a", "serial: 1 row in the step", ["anchor, decode"], "gemv", "1 row ≤ threshold 4")
    _step(
        canvas, 394, "b", "batched: 32 rows in the step", ["anchor, decode", "follower, prefill of 31"], "gemm",
        "32 rows > threshold 4",
    )  # fmt: skip
    _sum(canvas, 24, "a", "((x₁w₁ + x₂w₂) + x₃w₃) + x₄w₄ …")
    _sum(canvas, 394, "b", "(x₁w₁ + x₂w₂) + (x₃w₃ + x₄w₄) …")
    words = "Same row, same weights, another order of rounding: the last bits of the result differ."
    canvas.text(380, 312, words, "bold middle")
    return canvas


def _step(canvas: Canvas, x: int, run: str, heading: str, requests: list[str], path: str, reason: str) -> None:
    canvas.text(x, 34, heading, f"bold {run}")
    canvas.rect(x, 48, 150, 160, "box")
    canvas.rect(x + 12, 60, 126, 14, run, corner=2)
    if len(requests) > 1:
        for number in range(ROWS_SHOWN - 1):
            canvas.rect(x + 12, 82 + number * 16, 126, 10, "plain", corner=2)
        canvas.text(x + 75, 190, "⋮", "muted middle")
    canvas.lines(x, 226, requests, "small muted", leading=15)
    canvas.path([(x + 156, 128), (x + 196, 128)], f"{run}-line wide", run)
    canvas.rect(x + 204, 96, 130, 62, f"{run}-soft")
    canvas.text(x + 269, 124, path.upper(), "bold middle")
    canvas.text(x + 269, 143, "one by one" if path == "gemv" else "all in one call", "small muted middle")
    canvas.text(x + 269, 178, reason, "small muted middle")


def _sum(canvas: Canvas, x: int, run: str, words: str) -> None:
    canvas.rect(x, 254, 342, 30, f"{run}-soft")
    canvas.text(x + 171, 274, words, "code middle")
