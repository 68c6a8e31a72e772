"""Row counts as people read them: `2-7, 9`. Must not know findings."""

from __future__ import annotations

from collections.abc import Sequence


def spoken(counts: Sequence[int], tried: Sequence[int], most_parts: int | None = None) -> str:
    """Row counts with runs joined: `5-8` means every count tried between 5 and 8; `none` when empty, `all` when all.

    Runs beyond `most_parts` are left out and counted.
    """
    if not counts:
        return "none"
    if len(counts) == len(tried) > 1:
        return "all"
    runs = _runs(counts, tried)
    shown = runs if most_parts is None else runs[:most_parts]
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in shown)
    left_out = sum(len(run) for run in runs[len(shown) :])
    return f"{text} and {left_out} more" if left_out else text


def _runs(counts: Sequence[int], tried: Sequence[int]) -> list[list[int]]:
    places = {count: place for place, count in enumerate(tried)}
    runs: list[list[int]] = []
    for count in counts:
        if runs and places[count] == places[runs[-1][-1]] + 1:
            runs[-1].append(count)
        else:
            runs.append([count])
    return runs
