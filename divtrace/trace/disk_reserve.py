"""The hold of a recording on its file: disk space taken before HDF5 writes, and a lock while it lives.

HDF5 cannot undo a flush that ran out of space: its superblock may then promise more bytes than the file has, and
nothing opens it any more. So the space is taken first, and only then written into: a full disk stops a recording
between two flushes. Must not know tables.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from divtrace.trace.superblock import CHECKSUM, Superblock

try:
    import fcntl
except ImportError:  # no such locks on this system: a file that is being written looks like one whose writer died
    fcntl = None  # type: ignore[assignment]

BLOCK_BYTES = 1 << 20


class DiskReserve:
    """Space of one file, reserved ahead of its writer, and the lock that tells readers that there is one.

    HDF5 cuts a file back to what it uses at the end of each flush, so the space is reserved anew before every one.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR)
        if fcntl is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

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
        used_bytes = Superblock(os.pread(self._descriptor, CHECKSUM.stop, 0)).end_of_file
        if 0 < used_bytes < os.fstat(self._descriptor).st_size:
            os.truncate(self._descriptor, used_bytes)
        self.close()

    def close(self) -> None:
        """Forget the file, as it is."""
        os.close(self._descriptor)


def is_being_written(descriptor: int) -> bool:
    """True while the process that records into this file lives: it holds a lock, which dies with it."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
