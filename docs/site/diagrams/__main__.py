"""Writes the diagrams of the documents: `python -m docs.site.diagrams`."""

from __future__ import annotations

from pathlib import Path

from docs.site.diagrams import (
    batch_path,
    both_ways,
    carried_difference,
    speculation_step,
    trace_levels,
    walk_back,
)

FOLDER = Path(__file__).parents[2] / "images" / "concepts"
PICTURES = {
    "batch-path": batch_path.draw,
    "carried-difference": carried_difference.draw,
    "walk-back": walk_back.draw,
    "both-ways": both_ways.draw,
    "trace-levels": trace_levels.draw,
    "speculation-step": speculation_step.draw,
}


def main() -> None:
    """Write every picture."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(draw().render(), encoding="utf-8")


if __name__ == "__main__":
    main()
