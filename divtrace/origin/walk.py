"""The backward walk over pairs of KV rows: from a reader to the rows that differ although what they read
is equal.

A row's K and V in layer L follow from its token and from the rows at or before its position in layers
below L. So a differing row is an origin when no earlier row that it read differs in a layer below its own
lowest differing one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.history import MemoryView
from divtrace.align.index import Integers
from divtrace.align.layers import LayerDifferences, first_layer_differences
from divtrace.align.runs import RunPair
from divtrace.origin.faults import FaultFinder
from divtrace.origin.records import InputFault


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that read positions below `length`: a request's rows (or decision) in one step of each
    run.
    """

    request_a: int
    step_a: int
    request_b: int
    step_b: int
    length: int


@dataclass(frozen=True, slots=True)
class DifferingRows:
    """Pairs of KV rows that differ; arrays of shape (rows,). `reused` where a run took the row from the
    prefix cache.
    """

    positions: Integers
    records_a: Integers
    records_b: Integers
    reused: npt.NDArray[np.bool_]
    differences: LayerDifferences

    def take(self, chosen: npt.NDArray[np.bool_] | Integers) -> DifferingRows:
        """The rows at which `chosen` is True, or the rows with these numbers."""
        found = self.differences
        return DifferingRows(
            self.positions[chosen],
            self.records_a[chosen],
            self.records_b[chosen],
            self.reused[chosen],
            LayerDifferences(found.first_layer[chosen], found.key_differs[chosen], found.value_differs[chosen]),
        )


@dataclass(frozen=True, slots=True)
class Walk:
    """What a walk found: rows read by the decision that differ, origins among all rows visited, and
    faults.
    """

    rows_read: int
    read: DifferingRows
    origins: DifferingRows
    faults: tuple[InputFault, ...]


def walk_back(runs: RunPair, start: Reader, faults: FaultFinder) -> Walk:
    """Visit the start and, where rows were written by other readers of other memory, those readers in
    turn.
    """
    queue, seen = [start], {start}
    visited: list[DifferingRows] = []
    origins: list[DifferingRows] = []
    while queue:
        reader = queue.pop()
        rows, is_origin, unsettled = _visit(runs, reader, faults)
        visited.append(rows)
        origins.append(rows.take(is_origin))
        for writer in _writers(runs, rows.take(unsettled)):
            if writer not in seen:
                seen.add(writer)
                queue.append(writer)
    return Walk(start.length, visited[0], _distinct(origins), faults.found)


def _visit(
    runs: RunPair, reader: Reader, faults: FaultFinder
) -> tuple[DifferingRows, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Differing rows that `reader` read; which are origins; which must be judged by what their writer read.

    A row that was written for another position has no counterpart to compare inputs with: it is an origin itself.
    """
    a = runs.memory_a.seen_by(reader.request_a, reader.length, reader.step_a)
    b = runs.memory_b.seen_by(reader.request_b, reader.length, reader.step_b)
    faults.check_views(reader.request_a, a, reader.request_b, b)
    different = a.known & b.known
    different[different] = runs.a.row_digests[a.records[different]] != runs.b.row_digests[b.records[different]]
    positions = np.flatnonzero(different).astype(np.int64)
    records_a, records_b = a.records[positions], b.records[positions]
    found = first_layer_differences(runs, records_a, records_b)
    rows = DifferingRows(positions, records_a, records_b, (a.reused | b.reused)[positions], found)

    settled = (_written_in_order(a) & _written_in_order(b))[positions]
    displaced = (runs.a.row_positions[records_a] != positions) | (runs.b.row_positions[records_b] != positions)
    layer = np.full(reader.length, runs.a.layers, np.int64)
    layer[positions] = found.first_layer
    lowest_before = _lowest_before(layer)[positions]
    changed = faults.changed_layer_before(
        reader.request_a, reader.request_b, positions, a.steps[positions], b.steps[positions]
    )
    lowest_before = np.minimum(lowest_before, changed)
    is_origin = displaced | (settled & (found.first_layer <= lowest_before))
    return rows, is_origin, ~(settled | displaced)


def _written_in_order(view: MemoryView) -> npt.NDArray[np.bool_]:
    """True where the reader's own request wrote the row, after everything below it: then the row read
    this very view.
    """
    latest_before = np.maximum.accumulate(np.concatenate([np.zeros(1, np.int64), view.steps[:-1]]))
    return ~view.reused & (view.steps >= latest_before[: view.steps.size])


def _lowest_before(layer: Integers) -> Integers:
    """Lowest differing layer among all positions before each one."""
    if layer.size == 0:
        return layer
    before = np.concatenate([[np.iinfo(np.int64).max], layer[:-1]])
    return np.minimum.accumulate(before).astype(np.int64)


def _writers(runs: RunPair, rows: DifferingRows) -> list[Reader]:
    """The readers that computed these rows, one per pair of (request, step) in A and B."""
    if rows.positions.size == 0:
        return []
    keys = np.stack(
        [
            runs.a.row_requests[rows.records_a],
            runs.a.row_steps[rows.records_a],
            runs.b.row_requests[rows.records_b],
            runs.b.row_steps[rows.records_b],
        ],
        axis=1,
    )
    groups, inverse = np.unique(keys, axis=0, return_inverse=True)
    lengths = np.zeros(len(groups), np.int64)
    np.maximum.at(lengths, inverse.reshape(-1), rows.positions + 1)
    return [
        Reader(int(request_a), int(step_a), int(request_b), int(step_b), int(length))
        for (request_a, step_a, request_b, step_b), length in zip(groups, lengths, strict=True)
    ]


def _distinct(groups: list[DifferingRows]) -> DifferingRows:
    """All rows of all groups, each pair once, in the order of run B's execution."""
    joined = DifferingRows(
        np.concatenate([g.positions for g in groups]),
        np.concatenate([g.records_a for g in groups]),
        np.concatenate([g.records_b for g in groups]),
        np.concatenate([g.reused for g in groups]),
        LayerDifferences(
            np.concatenate([g.differences.first_layer for g in groups]),
            np.concatenate([g.differences.key_differs for g in groups]),
            np.concatenate([g.differences.value_differs for g in groups]),
        ),
    )
    order = np.lexsort((joined.records_a, joined.records_b))
    pairs = np.stack([joined.records_b[order], joined.records_a[order]], axis=1)
    first = np.ones(order.size, bool)
    first[1:] = np.any(pairs[1:] != pairs[:-1], axis=1)
    return joined.take(order[first])
