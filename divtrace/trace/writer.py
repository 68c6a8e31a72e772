"""Writes a trace: append-only tables in an HDF5 file that stays readable when the process dies.

Owns buffering, flushing and the order in which things reach the disk. Must not know the engine.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import h5py
import numpy as np
import numpy.typing as npt
import xxhash

from divtrace.errors import TraceError
from divtrace.trace.disk_reserve import DiskReserve
from divtrace.trace.header import Header
from divtrace.trace.layout import (
    HEADER_DATASET,
    SCHEMA_VERSION_ATTRIBUTE,
    all_tables,
    create_column,
    recorded_columns,
)
from divtrace.trace.schema import FLUSHES, FOOTER, STEPS, STRING_BYTES, TABLES
from divtrace.trace.table_buffer import TableBuffer

CHUNK_CACHE_BYTES = 256 * 1024
EMPTY_TRACE_BYTES = 512 * 1024
FLUSH_MARGIN_BYTES = 256 * 1024


class TraceWriter:
    """One growing trace file.

    Rows are buffered and reach the file every `flush_steps` steps or `flush_seconds` seconds, whichever is
    first (looked at when a step is appended). A flush first makes all tables durable for readers, then
    appends to `flushes` how long each is: what a reader believes is the last complete line of that table, so
    a flush that was cut short costs its own rows and no others. Usable as a context manager; leaving it
    through an exception that is not KeyboardInterrupt leaves the trace without a footer, marked as ended
    early.

    Raises:
        TraceError: the file exists and `overwrite` is False, or it cannot be created or written.
    """

    def __init__(
        self,
        path: str | Path,
        header: Header,
        flush_steps: int = 16,
        flush_seconds: float = 2.0,
        overwrite: bool = False,
    ) -> None:
        document = header.to_json()
        self.path = Path(path)
        self.header = header
        self._flush_steps = flush_steps
        self._flush_seconds = flush_seconds
        self._file = _create(self.path, overwrite)
        self._failed = False
        self._reserve = DiskReserve(self.path)
        try:
            self._reserve.ensure(EMPTY_TRACE_BYTES + len(document))
            self._tables = self._create_tables(document)
            self._file.swmr_mode = True
        except (OSError, RuntimeError, ValueError) as error:
            failure = self._write_failure(error)
            self.path.unlink(missing_ok=True)
            raise failure from error
        self._flushed_steps = 0
        self._flushed_at = time.monotonic()
        self.flush()

    @property
    def is_open(self) -> bool:
        """False after `close` or a failed write."""
        return bool(self._file) and not self._failed

    def length(self, table: str) -> int:
        """Rows appended so far, flushed or not."""
        return self._tables[table].length

    def append(self, table: str, columns: Mapping[str, npt.ArrayLike]) -> int:
        """Append rows given as columns of equal length; return the number of the first one.

        Columns that this trace's level leaves out may be given and are dropped; all others must be there.

        Raises:
            ValueError: a column is missing, or the lengths differ: a defect of the caller.
        """
        return self._tables[table].append(columns)

    def append_row(self, table: str, **values: Any) -> int:
        """Append one row given as scalars (or 1-D arrays for wide columns); return its number."""
        return self._tables[table].append({name: [value] for name, value in values.items()})

    def append_step(self, **values: Any) -> int:
        """Append the row of `steps` that completes a step, and flush when it is time to."""
        number = self.append_row(STEPS.name, **values)
        waited_s = time.monotonic() - self._flushed_at
        if number + 1 - self._flushed_steps >= self._flush_steps or waited_s >= self._flush_seconds:
            self.flush()
        return number

    def flush(self) -> None:
        """Write everything appended so far and let readers see it.

        Raises:
            TraceError: the disk is full or the file became unwritable; what earlier flushes wrote stays
                readable.
        """
        if not self.is_open:
            raise TraceError(f"{self.path}: the trace is closed; nothing more can be recorded into it.")
        try:
            self._reserve_bytes(sum(table.needed_bytes for table in self._tables.values()))
            for table in self._tables.values():
                table.write_pending()
            self._file.flush()
            self._reserve_bytes(0)
            self._seal()
            self._file.flush()
        except (OSError, RuntimeError) as error:
            raise self._write_failure(error) from error
        self._flushed_steps = self.length(STEPS.name)
        self._flushed_at = time.monotonic()

    def close(self, interrupted: bool = False, failure: str = "") -> None:
        """Flush, write the footer that marks the end of the run, and close.

        `interrupted` tells that Ctrl-C ended the run, `failure` is the sentence of an error that did.
        """
        if not self.is_open:
            return
        sentence = np.frombuffer(failure.encode("utf-8", "replace"), np.uint8)
        self.append_row(
            FOOTER.name,
            interrupted=interrupted,
            failure_offset=self.append(STRING_BYTES.name, {"value": sentence}),
            failure_count=len(sentence),
            step_count=self.length(STEPS.name),
        )
        self.flush()
        try:
            self._file.close()
            self._reserve.release()
        except (OSError, RuntimeError) as error:
            raise self._write_failure(error) from error

    def abandon(self) -> None:
        """Close without a footer: what was flushed stays readable and says that the run ended early."""
        if self.is_open:
            self._file.close()
            self._reserve.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.close(interrupted=kind is not None)
        else:
            self.abandon()

    def _create_tables(self, document: bytes) -> dict[str, TableBuffer]:
        self._file.attrs.create(SCHEMA_VERSION_ATTRIBUTE, self.header.schema_version, dtype="<u4")
        header = np.frombuffer(document, np.uint8)
        self._file.create_dataset(HEADER_DATASET, data=header, chunks=header.shape, fletcher32=True)
        tables = {}
        for table in all_tables():
            columns = recorded_columns(table, self.header)
            if columns:
                group = self._file.create_group(table.name)
                datasets = [create_column(group, table, column, self.header) for column in columns]
                tables[table.name] = TableBuffer(table, dict(zip(columns, datasets, strict=True)), self.header)
        return tables

    def _seal(self) -> None:
        lengths = np.array([[self._written_length(table.name) for table in TABLES]], "<u8")
        seals = self._tables[FLUSHES.name]
        seals.append({"lengths": lengths, "checksum": [xxhash.xxh3_64_intdigest(lengths.tobytes())]})
        seals.write_pending()

    def _reserve_bytes(self, pending_bytes: int) -> None:
        """Take space for more than the next flush can add: rows rounded up to chunks, and chunk indexes."""
        self._reserve.ensure(self._file.id.get_filesize() + pending_bytes + FLUSH_MARGIN_BYTES)

    def _written_length(self, table: str) -> int:
        return self._tables[table].length if table in self._tables else 0

    def _write_failure(self, error: Exception) -> TraceError:
        """End the file as it is on disk: HDF5 closes on a scratch file, so that it cannot write to the real one."""
        self._failed = True
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        with contextlib.suppress(OSError, RuntimeError, ValueError), tempfile.TemporaryFile() as scratch:
            os.dup2(scratch.fileno(), self._file.id.get_vfd_handle())
            self._file.close()
        self._reserve.close()
        return TraceError(
            f"{self.path}: cannot write the trace ({reason.splitlines()[0]}); free some space or record "
            "to another disk. What was flushed before stays readable."
        )


def _create(path: Path, overwrite: bool) -> h5py.File:
    if path.exists() and not overwrite:
        raise TraceError(f"{path}: the file exists; choose another name or ask for it to be overwritten.")
    try:
        return h5py.File(path, "w" if overwrite else "x", libver="latest", rdcc_nbytes=CHUNK_CACHE_BYTES, locking=False)
    except OSError as error:
        reason = error.strerror or str(error).splitlines()[0]
        raise TraceError(f"{path}: cannot create the trace ({reason}); check the folder and its rights.") from error
