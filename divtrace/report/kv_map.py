"""The KV map of the explained request: which rows are equal bit for bit, and how far the others moved."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from divtrace.align.index import PIECE_ROWS, Integers
from divtrace.align.pairing import RequestPair
from divtrace.align.runs import RunPair
from divtrace.align.timeline import RowPairs
from divtrace.report.model import KvMap

LARGEST_CELLS = 400_000
NOT_RECORDED, EQUAL, OTHER_BITS, FIRST_SHADE, LAST_SHADE = 0, 1, 2, 3, 255


def read_kv_map(runs: RunPair, pair: RequestPair) -> KvMap | None:
    """Rows that the decisions of this pair read, up to the split; None where the traces hold no K/V hashes."""
    timeline = runs.timeline(pair)
    if not runs.can_compare_rows or runs.a.layers == 0 or timeline.prompt_difference is not None or timeline.end == 0:
        return None
    rows = _last_versions(runs.rows(timeline, runs.decisions(timeline)))
    if rows.positions.size == 0:
        return None
    differs, moved = _compare(runs, rows)
    smallest, largest = _limits(moved)
    cells = np.full((timeline.end, runs.a.layers), NOT_RECORDED, np.uint8)
    cells[rows.positions] = shades(differs, moved, smallest, largest)
    size = max(1, -(-cells.size // LARGEST_CELLS))
    steps_a, steps_b = (np.full(timeline.end, -1, np.int64) for _ in "ab")
    steps_a[rows.positions] = runs.a.row_steps[rows.records_a]
    steps_b[rows.positions] = runs.b.row_steps[rows.records_b]
    return KvMap(
        positions=timeline.end,
        layers=runs.a.layers,
        bin_positions=size,
        cells=base64.b64encode(_binned(cells, size).tobytes()).decode("ascii"),
        smallest=smallest,
        largest=largest,
        steps_a=steps_a[::size].tolist(),
        steps_b=steps_b[::size].tolist(),
        compared_rows=int(rows.positions.size),
        differing_rows=int(np.count_nonzero(differs.any(axis=1))),
    )


def _last_versions(rows: RowPairs) -> RowPairs:
    """What the last decision read at each position: one row a position."""
    last = np.ones(rows.positions.size, bool)
    last[:-1] = rows.positions[1:] != rows.positions[:-1]
    return RowPairs(
        rows.positions[last], rows.read_from[last], rows.records_a[last], rows.records_b[last], rows.unmatched
    )


def _compare(runs: RunPair, rows: RowPairs) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.float64]]:
    """Whether bits differ, and how far the larger of K and V's largest elements moved; both (rows, layers)."""
    shape = (rows.positions.size, runs.a.layers)
    differs, moved = np.zeros(shape, bool), np.zeros(shape)
    for start in range(0, shape[0], PIECE_ROWS):
        piece = slice(start, start + PIECE_ROWS)
        records: tuple[Integers, Integers] = rows.records_a[piece], rows.records_b[piece]
        for tensor in ("key", "value"):
            hash_a, hash_b = (
                run.gather("rows", f"{tensor}_hash", r) for run, r in zip((runs.a, runs.b), records, strict=True)
            )
            left, right = (
                run.gather("rows", f"{tensor}_magnitude", r).astype(np.float64)
                for run, r in zip((runs.a, runs.b), records, strict=True)
            )
            differs[piece] |= hash_a != hash_b
            moved[piece] = np.fmax(moved[piece], np.abs(right - left))
    return differs, np.where(np.isfinite(moved), moved, 0.0)


def _limits(moved: npt.NDArray[np.float64]) -> tuple[float | None, float | None]:
    positive = moved[moved > 0]
    return (float(positive.min()), float(positive.max())) if positive.size else (None, None)


def shades(
    differs: npt.NDArray[np.bool_], moved: npt.NDArray[np.float64], smallest: float | None, largest: float | None
) -> npt.NDArray[np.uint8]:
    """The byte of each (row, layer), as `KvMap` says: other bits show even where no largest element moved."""
    cells = np.where(differs, OTHER_BITS, EQUAL).astype(np.uint8)
    if smallest is None or largest is None:
        return cells
    span = np.log(largest / smallest) or 1.0
    visible = differs & (moved > 0)
    heights = np.log(moved[visible] / smallest) / span
    cells[visible] = np.clip(FIRST_SHADE + np.rint(heights * (LAST_SHADE - FIRST_SHADE)), FIRST_SHADE, LAST_SHADE)
    return cells


def _binned(cells: npt.NDArray[np.uint8], size: int) -> npt.NDArray[np.uint8]:
    """The largest value of each `size` positions: a difference is never hidden by its neighbours."""
    if size == 1:
        return cells
    padded = np.zeros((-(-cells.shape[0] // size) * size, cells.shape[1]), np.uint8)
    padded[: cells.shape[0]] = cells
    binned: npt.NDArray[np.uint8] = padded.reshape(-1, size, cells.shape[1]).max(axis=1)
    return binned
