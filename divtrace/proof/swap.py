"""K/V rows of one run put in the place of another's: which rows belong together, and the step that results.

Must not run anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from divtrace.align.index import TraceIndex
from engine.known import KnownStep
from engine.observer import LayerRows


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Packed rows of one step of a run, and of a step of the other run that computed the same positions."""

    own: tuple[int, ...]
    other: tuple[int, ...]


def matching_rows(
    own: TraceIndex, own_step: int, other: TraceIndex, other_step: int, pairs: Iterable[tuple[str, str]]
) -> RowPlaces:
    """Rows of both steps that stand for the same position of a pair of requests (own id, other id)."""
    found: dict[int, int] = {}
    for own_id, other_id in pairs:
        ours, theirs = _rows_of(own, own_step, own_id), _rows_of(other, other_step, other_id)
        found |= {ours[position]: theirs[position] for position in ours if position in theirs}
    return RowPlaces(tuple(found), tuple(found.values()))


def swap_rows(own: KnownStep, other: KnownStep, places: RowPlaces) -> KnownStep:
    """`own` with the rows at `places.own` replaced by the other step's at `places.other`, in every layer."""
    layers = zip(own.kv_rows, other.kv_rows, strict=True)
    return KnownStep(
        tuple(
            LayerRows(_swapped(mine.keys, yours.keys, places), _swapped(mine.values, yours.values, places))
            for mine, yours in layers
        )
    )


def _rows_of(index: TraceIndex, step: int, request_id: str) -> dict[int, int]:
    """Packed row by position."""
    return {
        segment.first_position + offset: segment.first_row + offset
        for segment in index.segments_of_step(step)
        if index.request_ids[segment.request] == request_id
        for offset in range(segment.rows)
    }


def _swapped(own: Any, other: Any, places: RowPlaces) -> Any:
    mine, yours = list(places.own), list(places.other)
    changed: Any = mx.array(own) if isinstance(own, mx.array) else np.array(own)
    if isinstance(changed, mx.array):
        changed[mx.array(mine)] = other[mx.array(yours)]
        mx.eval(changed)
    else:
        changed[mine] = other[yours]
    return changed
