"""Finds and opens the HDF5 file behind a path, URL or file object, and reads its header.

Must not know tables.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from divtrace.errors import TraceError
from divtrace.trace.disk_reserve import is_being_written
from divtrace.trace.guarded_file import DAMAGED, open_dataset
from divtrace.trace.header import Header, parse_header
from divtrace.trace.layout import HEADER_DATASET, SCHEMA_VERSION_ATTRIBUTE
from divtrace.trace.schema import SCHEMA_VERSION
from divtrace.trace.superblock import AsClosed, read_superblock

LARGEST_HEADER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class OpenedFile:
    """An open HDF5 file, the name to call it by in messages, and what else to close.

    `left_open` is True when a writer died or is still at work: only then may its last writes be half done.
    """

    file: h5py.File
    name: str
    left_open: bool
    also_close: tuple[Callable[[], None], ...] = field(default=())

    def close(self) -> None:
        """Close the file and what it was read through."""
        self.file.close()
        for close in self.also_close:
            close()


def open_file(source: Any) -> OpenedFile:
    """Open a path, an fsspec URL, or a seekable binary file object.

    Raises:
        TraceError: there is nothing to read, or it is not HDF5.
    """
    if hasattr(source, "read"):
        return _open_stream(source, str(getattr(source, "name", "the given file object")), ())
    try:
        text = os.fsdecode(source)
    except TypeError:
        raise TraceError(f"{source!r} is no trace; give a path, a URL or a binary file object.") from None
    if "://" in text:
        return _open_url(text)
    return _open_path(Path(text))


def read_header(opened: OpenedFile) -> Header:
    """Read and check the header.

    Raises:
        TraceError: there is none, it is malformed, or the schema is newer than this version reads.
    """
    version = _schema_version(opened)
    if version != SCHEMA_VERSION:
        raise TraceError(
            f"{opened.name}: trace schema {version} is not one this divtrace reads "
            f"(it reads {SCHEMA_VERSION}); update divtrace or record again."
        )
    where = f"{opened.name}: header"
    document = open_dataset(opened.file, HEADER_DATASET, np.dtype("<u1"), None, where)
    if document.rows > LARGEST_HEADER_BYTES:
        raise TraceError(f"{where}: {document.rows} bytes are too many; {DAMAGED}.")
    document.check_holds(document.rows)
    return parse_header(document.read(0, document.rows).tobytes(), opened.name)


def _schema_version(opened: OpenedFile) -> int:
    missing = f"{opened.name}: not a trace (it names no schema version); give a file that `divtrace record` wrote."
    try:
        attribute = h5py.h5a.open(opened.file.id, SCHEMA_VERSION_ATTRIBUTE.encode())
        if attribute.shape != () or attribute.dtype.kind not in "ui":
            raise TraceError(missing)
        value = np.zeros((), np.int64)
        attribute.read(value)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise TraceError(missing) from error
    return int(value)


def _open_path(path: Path) -> OpenedFile:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise TraceError(f"{path}: not a regular file; give a trace that `divtrace record` wrote.")
        stream = path.open("rb")
    except OSError as error:
        raise TraceError(f"{path}: cannot be opened ({_first_line(error)}).") from error
    if is_being_written(stream.fileno()):
        with stream, _one_sentence(str(path)):
            file = h5py.File(path, "r", libver="latest", swmr=True, locking=False)
            return OpenedFile(file, str(path), left_open=True)
    return _open_stream(stream, str(path), (stream.close,), path)


def _open_url(url: str) -> OpenedFile:
    try:
        import fsspec
    except ImportError as error:
        raise TraceError(f"{url}: reading a URL needs fsspec; install it, or copy the file here.") from error
    try:
        # Kept until the end: it owns what the stream is read through, an archive for example.
        opener = fsspec.open(url, "rb")
        stream = opener.open()
    except Exception as error:  # each protocol has errors of its own
        raise TraceError(f"{url}: cannot be opened ({_first_line(error)}).") from error
    return _open_stream(stream, url, (stream.close, opener.close))


def _open_stream(
    stream: BinaryIO, name: str, also_close: tuple[Callable[[], None], ...], path: Path | None = None
) -> OpenedFile:
    """Read through `stream`; a cleanly closed file that has a path is read by HDF5 itself, which is faster."""
    with contextlib.ExitStack() as stack:
        for close in also_close:
            stack.callback(close)
        with _one_sentence(name):
            superblock = read_superblock(stream)
            if not superblock.is_hdf5:
                raise TraceError(f"{name}: not an HDF5 file; give a trace that `divtrace record` wrote.")
            if superblock.left_open and not superblock.is_sound:
                raise TraceError(f"{name}: its first bytes are damaged; record the run again.")
            source = AsClosed(stream, superblock) if superblock.left_open else (path or stream)
            file = h5py.File(source, "r", libver="latest")
        stack.pop_all()
        return OpenedFile(file, name, superblock.left_open, also_close)


@contextlib.contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError, ValueError) as error:
        raise TraceError(
            f"{name}: cannot be opened ({_first_line(error)}); it is cut short or damaged, so record the run again."
        ) from error


def _first_line(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return os.strerror(errno.ENOENT)
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
