"""Rows of one table that wait for the next flush. Must not know when a flush is due."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import h5py
import numpy as np
import numpy.typing as npt

from divtrace.trace.header import Header
from divtrace.trace.layout import column_dtype, column_width
from divtrace.trace.schema import Column, Table

CHUNK_OVERHEAD_BYTES = 64


class TableBuffer:
    """Pending rows of a table, column by column, and the datasets that they go to."""

    def __init__(self, table: Table, datasets: Mapping[Column, h5py.Dataset], header: Header) -> None:
        self.length = 0
        self._table = table
        self._columns = [
            _PendingColumn(column.name, column_dtype(column), column_width(column, header), dataset)
            for column, dataset in datasets.items()
        ]
        self._written = 0
        self._chunks = [
            (dataset.chunks[0], dataset.dtype.itemsize * math.prod(dataset.chunks) + CHUNK_OVERHEAD_BYTES)
            for dataset in datasets.values()
        ]

    def append(self, columns: Mapping[str, npt.ArrayLike]) -> int:
        """Keep rows until the next write; return the number of the first one.

        Raises:
            ValueError: a column is missing, of another width, or of another length than the first.
        """
        arrays = [self._as_column(column, columns) for column in self._columns]
        counts = {len(array) for array in arrays}
        if len(counts) != 1:
            raise ValueError(f"table {self._table.name}: columns of different lengths {sorted(counts)}")
        for column, array in zip(self._columns, arrays, strict=True):
            column.rows.append(array)
        first = self.length
        self.length += counts.pop()
        return first

    @property
    def needed_bytes(self) -> int:
        """An upper bound of what writing the pending rows adds to the file, chunk indexes aside."""
        if self._written == self.length:
            return 0
        rows = self.length - self._written
        return sum((2 + rows // chunk_rows) * chunk_bytes for chunk_rows, chunk_bytes in self._chunks)

    def write_pending(self) -> None:
        """Grow the datasets and write the pending rows into them."""
        if self._written == self.length:
            return
        for column in self._columns:
            _extend(column.dataset, np.concatenate(column.rows), self._written)
            column.rows.clear()
        self._written = self.length

    def _as_column(self, column: _PendingColumn, columns: Mapping[str, npt.ArrayLike]) -> npt.NDArray[np.generic]:
        if column.name not in columns:
            raise ValueError(f"table {self._table.name}: column {column.name} is missing")
        array = np.array(columns[column.name], column.dtype)
        expected = array.shape[:1] if column.width is None else (*array.shape[:1], column.width)
        if array.ndim == 0 or array.shape != expected:
            raise ValueError(f"table {self._table.name}: column {column.name} has shape {array.shape}")
        return array


@dataclass(slots=True)
class _PendingColumn:
    """What a step needs to know of a column, at hand: every step asks it of every column."""

    name: str
    dtype: np.dtype[np.generic]
    width: int | None
    dataset: h5py.Dataset
    rows: list[npt.NDArray[np.generic]] = field(default_factory=list)


def _extend(dataset: h5py.Dataset, rows: npt.NDArray[np.generic], start: int) -> None:
    """Append without the cost of h5py's selection logic: a flush does this for every column."""
    stop = start + len(rows)
    trailing = rows.shape[1:]
    dataset.id.set_extent((stop, *trailing))
    space = dataset.id.get_space()
    space.select_hyperslab((start, *(0 for _ in trailing)), rows.shape)
    dataset.id.write(h5py.h5s.create_simple(rows.shape), space, np.ascontiguousarray(rows))
