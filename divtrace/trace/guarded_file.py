"""Opens datasets of a file that may be hostile or damaged.

Must not know the schema's meaning, only shapes and types.

HDF5 lets a file point elsewhere (external and soft links, virtual datasets, external raw data), claim shapes
far beyond its size, and name filters that load code. None of that has a place in a trace, so it is refused
before any data is touched.
"""

from __future__ import annotations

from dataclasses import dataclass

import h5py
import numpy as np
import numpy.typing as npt

from divtrace.errors import TraceError

DAMAGED = "the file is damaged or was not written by divtrace; record the run again"
LARGEST_EXPANSION = 1032
"""Bytes that one byte of a deflate stream can stand for at most."""
LARGEST_CHUNK_BYTES = 1 << 24
CHECKSUM_BYTES = 4
ALLOWED_FILTERS = frozenset({h5py.h5z.FILTER_FLETCHER32, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE})


@dataclass(frozen=True, slots=True)
class GuardedDataset:
    """A dataset whose storage was checked: hard link, own bytes, known filters, expected type."""

    dataset: h5py.h5d.DatasetID
    where: str
    dtype: np.dtype[np.generic]
    width: int | None
    filters: frozenset[int]
    chunk: tuple[int, ...]

    @property
    def rows(self) -> int:
        """Rows that the file claims now."""
        return int(self.dataset.shape[0])

    def refresh(self) -> None:
        """See what a running writer has added."""
        self.dataset.refresh()

    def check_holds(self, rows: int) -> None:
        """Make sure that the file stores `rows` rows, so that no larger array is made than its bytes warrant.

        Raises:
            TraceError: it claims or stores fewer.
        """
        try:
            stored = int(self.dataset.get_storage_size())
        except RuntimeError as error:
            raise TraceError(f"{self.where}: its index cannot be read; {DAMAGED}.") from error
        expansion = LARGEST_EXPANSION if h5py.h5z.FILTER_DEFLATE in self.filters else 1
        needed = rows * self.dtype.itemsize * (1 if self.width is None else self.width)
        if rows > self.rows or needed > stored * expansion:
            raise TraceError(f"{self.where}: {rows} rows are promised, but not stored; {DAMAGED}.")

    def read(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        """Rows `start` to `stop`; the caller has checked that they are stored.

        Raises:
            TraceError: the bytes cannot be read or their checksum is wrong.
        """
        rows = self._room(start, stop)
        try:
            self._read_into(rows, start)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreadable(start, stop) from error
        return rows

    def read_torn_tail(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        """Rows `start` to `stop`, the last chunk of the dataset without a look at its checksum.

        A process that was killed while it rewrote that chunk leaves the rows of earlier flushes as they were, and
        a checksum that does not fit them.

        Raises:
            TraceError: the damage is elsewhere, or that chunk is compressed.
        """
        rows = self._room(start, stop)
        first = (self.rows - 1) // self.chunk[0] * self.chunk[0]
        if self.filters != {h5py.h5z.FILTER_FLETCHER32} or stop <= first:
            raise self._unreadable(start, stop)
        try:
            self._read_into(rows[: max(first - start, 0)], start)
            _, raw = self.dataset.read_direct_chunk((first, *(0 for _ in self.chunk[1:])))
            tail = np.frombuffer(raw[:-CHECKSUM_BYTES], self.dtype).reshape(self.chunk)
        except (OSError, RuntimeError, ValueError) as error:
            raise self._unreadable(start, stop) from error
        rows[max(first - start, 0) :] = tail[max(start - first, 0) : stop - first]
        return rows

    def _room(self, start: int, stop: int) -> npt.NDArray[np.generic]:
        trailing = () if self.width is None else (self.width,)
        return np.empty((max(stop - start, 0), *trailing), self.dtype)

    def _unreadable(self, start: int, stop: int) -> TraceError:
        return TraceError(f"{self.where}: rows {start} to {stop} cannot be read; {DAMAGED}.")

    def _read_into(self, rows: npt.NDArray[np.generic], start: int) -> None:
        if not rows.size:
            return
        space = self.dataset.get_space()
        space.select_hyperslab((start, *(0 for _ in rows.shape[1:])), rows.shape)
        self.dataset.read(h5py.h5s.create_simple(rows.shape), space, rows)


def open_dataset(
    group: h5py.Group, name: str, dtype: np.dtype[np.generic], width: int | None, where: str
) -> GuardedDataset:
    """Open `group[name]` if it is a plain, chunked dataset of this type and width.

    Raises:
        TraceError: it is missing, is a link to elsewhere, or its storage, filters, type or shape are not
            allowed.
    """
    opened = _open_hard_link(group, name, where)
    if not isinstance(opened, h5py.h5d.DatasetID):
        raise TraceError(f"{where}: not a dataset; {DAMAGED}.")
    try:
        plist = opened.get_create_plist()
        if plist.get_layout() != h5py.h5d.CHUNKED or plist.get_external_count():
            raise TraceError(f"{where}: its data lies outside of the file or in an unknown layout; {DAMAGED}.")
        filters = frozenset(plist.get_filter(index)[0] for index in range(plist.get_nfilters()))
        chunk = tuple(plist.get_chunk())
        found = opened.dtype
        shape = opened.shape
    except (OSError, RuntimeError, ValueError, TypeError, KeyError) as error:
        raise TraceError(f"{where}: its description cannot be read; {DAMAGED}.") from error
    if not filters <= ALLOWED_FILTERS:
        raise TraceError(f"{where}: it uses an unknown filter; write it again with shuffle and gzip only.")
    if found != dtype or len(shape) != (1 if width is None else 2) or shape[1:] != (() if width is None else (width,)):
        raise TraceError(f"{where}: type or shape {found}{list(shape)} is not what the schema says; {DAMAGED}.")
    if int(np.prod([float(extent) for extent in chunk])) * dtype.itemsize > LARGEST_CHUNK_BYTES:
        raise TraceError(f"{where}: its chunks are larger than {LARGEST_CHUNK_BYTES} bytes; {DAMAGED}.")
    return GuardedDataset(opened, where, dtype, width, filters, chunk)


def open_group(parent: h5py.Group, name: str, where: str) -> h5py.Group:
    """Open a subgroup through a hard link.

    Raises:
        TraceError: it is missing, a link to elsewhere, or no group.
    """
    opened = _open_hard_link(parent, name, where)
    if not isinstance(opened, h5py.h5g.GroupID):
        raise TraceError(f"{where}: not a table; {DAMAGED}.")
    return h5py.Group(opened)


def has_name(group: h5py.Group, name: str, where: str) -> bool:
    """True when `group` holds something called `name`, whatever it is.

    Raises:
        TraceError: its names cannot be read.
    """
    try:
        return name.encode() in group.id
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise TraceError(f"{where}: its columns cannot be listed; {DAMAGED}.") from error


def _open_hard_link(group: h5py.Group, name: str, where: str) -> object:
    encoded = name.encode()
    try:
        if encoded not in group.id:
            raise TraceError(f"{where}: missing; {DAMAGED}.")
        if group.id.links.get_info(encoded).type != h5py.h5l.TYPE_HARD:
            raise TraceError(f"{where}: a link to another place; {DAMAGED}.")
        opened = h5py.h5o.open(group.id, encoded)
        if h5py.h5o.get_info(opened).rc != 1:
            raise TraceError(f"{where}: the same object under two names; {DAMAGED}.")
        return opened
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise TraceError(f"{where}: cannot be opened; {DAMAGED}.") from error
