"""Sets disk space aside before HDF5 writes, so that a full disk stops a recording between two flushes.

HDF5 cannot undo a flush that ran out of space: its superblock may then promise more bytes than the file has, and
nothing opens it any more. So the space is taken first, and only then written into. Must not know tables.
"""

from __future__ import annotations

import os
from pathlib import Path

BLOCK_BYTES = 1 << 20
END_OF_FILE_FIELD = slice(28, 36)
"""Where a version 3 superblock keeps the address of the end of the file (HDF5 file format 3.0, section II.A)."""


class DiskReserve:
    """Space of one file, reserved ahead of its writer.

    HDF5 cuts a file back to what it uses at the end of each flush, so the space is reserved anew before every one.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR)

    def ensure(self, size_bytes: int) -> None:
        """Make sure that the file can grow to `size_bytes`.

        Raises:
            OSError: the disk is full, or the size is more than the file system or the user's limit allows.
        """
        present_bytes = os.fstat(self._descriptor).st_size
        if size_bytes <= present_bytes:
            return
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._descriptor, present_bytes, size_bytes - present_bytes)
            return
        while present_bytes < size_bytes:
            block = bytes(min(size_bytes - present_bytes, BLOCK_BYTES))
            present_bytes += os.pwrite(self._descriptor, block, present_bytes)

    def release(self) -> None:
        """Give back what the closed file does not use."""
        superblock = os.pread(self._descriptor, END_OF_FILE_FIELD.stop, 0)
        used_bytes = int.from_bytes(superblock[END_OF_FILE_FIELD], "little")
        if 0 < used_bytes < os.fstat(self._descriptor).st_size:
            os.truncate(self._descriptor, used_bytes)
        self.close()

    def close(self) -> None:
        """Forget the file, as it is."""
        os.close(self._descriptor)
