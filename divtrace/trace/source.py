"""Finds and opens the HDF5 file behind a path, URL or file object, and reads its header.

Must not know tables.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from divtrace.errors import TraceError
from divtrace.trace.guarded_file import DAMAGED, open_dataset
from divtrace.trace.header import Header, parse_header
from divtrace.trace.layout import HEADER_DATASET, SCHEMA_VERSION_ATTRIBUTE
from divtrace.trace.schema import SCHEMA_VERSION

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
SUPERBLOCK_VERSION_BYTE = 8
CONSISTENCY_FLAGS_BYTE = 11
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
    text = os.fspath(source)
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
        with path.open("rb") as stream:
            left_open = _was_left_open(stream, str(path))
        file = h5py.File(path, "r", libver="latest", swmr=left_open, locking=False)
        return OpenedFile(file, str(path), left_open)
    except (OSError, RuntimeError, ValueError) as error:
        raise TraceError(f"{path}: cannot be opened ({_first_line(error)}).") from error


def _open_url(url: str) -> OpenedFile:
    try:
        import fsspec
    except ImportError as error:
        raise TraceError(f"{url}: reading a URL needs fsspec; install it, or copy the file here.") from error
    try:
        stream = fsspec.open(url, "rb").open()
    except Exception as error:  # each protocol has errors of its own
        raise TraceError(f"{url}: cannot be opened ({_first_line(error)}).") from error
    return _open_stream(stream, url, (stream.close,))


def _open_stream(stream: BinaryIO, name: str, also_close: tuple[Callable[[], None], ...]) -> OpenedFile:
    try:
        if not _was_left_open(stream, name):
            return OpenedFile(h5py.File(stream, "r", libver="latest"), name, False, also_close)
        return _open_copy(stream, name, also_close)
    except BaseException as error:
        for close in also_close:
            close()
        if isinstance(error, OSError | RuntimeError | ValueError):
            raise TraceError(f"{name}: cannot be opened ({_first_line(error)}).") from error
        raise


def _open_copy(stream: BinaryIO, name: str, also_close: tuple[Callable[[], None], ...]) -> OpenedFile:
    """HDF5 reads a file that a writer left open only by path, so the bytes go to a temporary file first."""
    with contextlib.ExitStack() as stack:
        copy = stack.enter_context(tempfile.NamedTemporaryFile(suffix=".h5"))
        stream.seek(0)
        while block := stream.read(1 << 20):
            copy.write(block)
        copy.flush()
        file = h5py.File(copy.name, "r", libver="latest", swmr=True, locking=False)
        return OpenedFile(file, name, True, (stack.pop_all().close, *also_close))


def _was_left_open(stream: BinaryIO, name: str) -> bool:
    """True when the superblock says that a writer has the file open or died: only SWMR can read that."""
    stream.seek(0)
    start = stream.read(CONSISTENCY_FLAGS_BYTE + 1)
    stream.seek(0)
    if start[: len(HDF5_SIGNATURE)] != HDF5_SIGNATURE or len(start) <= CONSISTENCY_FLAGS_BYTE:
        raise TraceError(f"{name}: not an HDF5 file; give a trace that `divtrace record` wrote.")
    return start[SUPERBLOCK_VERSION_BYTE] >= 3 and start[CONSISTENCY_FLAGS_BYTE] != 0


def _first_line(error: Exception) -> str:
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(text).splitlines()[0]
