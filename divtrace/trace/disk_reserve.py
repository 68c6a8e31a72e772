"""Sets disk space aside before HDF5 writes, so that a full disk stops a recording between two flushes.

HDF5 cannot undo a flush that ran out of space: its superblock may then promise more bytes than the file has, and
nothing opens it any more. So the space is taken first, and only then written into. Must not know tables.
"""

from __future__ import annotations

import os
from pathlib import Path

QUANTUM_BYTES = 1 << 20
END_OF_FILE_FIELD = slice(28, 36)
"""Where a version 3 superblock keeps the address of the end of the file (HDF5 file format 3.0, section II.A)."""


class DiskReserve:
    """Space of one file, reserved ahead of its writer."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR)
        self._reserved_bytes = 0

    def ensure(self, size_bytes: int) -> None:
        """Make sure that the file can grow to `size_bytes`.

        Raises:
            OSError: the disk is full, or the size is more than the file system or the user's limit allows.
        """
        if size_bytes <= self._reserved_bytes:
            return
        try:
            self._grow(size_bytes + QUANTUM_BYTES)
        except OSError:
            self._grow(size_bytes)

    def release(self) -> None:
        """Give back what the closed file does not use."""
        used_bytes = int.from_bytes(os.pread(self._descriptor, END_OF_FILE_FIELD.stop, 0)[END_OF_FILE_FIELD], "little")
        if 0 < used_bytes < os.fstat(self._descriptor).st_size:
            os.truncate(self._descriptor, used_bytes)
        os.close(self._descriptor)

    def _grow(self, size_bytes: int) -> None:
        missing_bytes = size_bytes - self._reserved_bytes
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, self._reserved_bytes, missing_bytes)
        else:
            while missing_bytes > 0:
                block = bytes(min(missing_bytes, QUANTUM_BYTES))
                missing_bytes -= os.pwrite(self._descriptor, block, size_bytes - missing_bytes)
        self._reserved_bytes = size_bytes
