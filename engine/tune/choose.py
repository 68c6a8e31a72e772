"""From timings to ranges of rows. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from engine.tune.records import PathRange

LEAST_GAIN = 0.05
"""A path takes over at a row count only if it saves this share of the time: noise should not make thresholds."""


def choose_paths(
    milliseconds: Mapping[int, Mapping[str, float]], least_gain: float = LEAST_GAIN
) -> tuple[PathRange, ...]:
    """The fastest path for each range of rows.

    Rows between two measured counts are treated like the larger one, rows above the largest like the largest.

    Args:
        milliseconds: time of one call by row count and path; every count has at least one path.
        least_gain: share of the time that a change of path must save.

    Raises:
        ValueError: nothing was measured.
    """
    if not milliseconds or not all(milliseconds.values()):
        raise ValueError("a path can only be chosen where one was measured")
    chosen: list[PathRange] = []
    present: str | None = None
    for rows in sorted(milliseconds):
        times = milliseconds[rows]
        fastest = min(times, key=lambda path: (times[path], path))
        stays = present is not None and present in times and times[fastest] > (1.0 - least_gain) * times[present]
        path = present if stays and present is not None else fastest
        if chosen and chosen[-1].path == path:
            chosen.pop()
        chosen.append(PathRange(rows, path))
        present = path
    return (*chosen[:-1], PathRange(None, chosen[-1].path))
