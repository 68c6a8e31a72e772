"""The first bytes of an HDF5 file: was its writer interrupted, and how to read on after that.

A process that dies while it writes leaves a flag behind. HDF5 then opens the file only in SWMR mode, where it waits
for a writer whenever a checksum is wrong: for a damaged file, that is for ever. Reading through `AsClosed` shows HDF5
the same file with the flag cleared, as its own tool h5clear would leave it, without changing the file.

Source: HDF5 File Format Specification 3.0, section II.A (superblock version 3) and II appendix (lookup3 checksum, by
Bob Jenkins, public domain).
"""

from __future__ import annotations

import io
import os
from dataclasses import dataclass
from typing import BinaryIO

SIGNATURE = b"\x89HDF\r\n\x1a\n"
VERSION_BYTE = 8
OFFSET_SIZE_BYTE = 9
FLAGS_BYTE = 11
CHECKED_BYTES = 44
CHECKSUM = slice(44, 48)
END_OF_FILE = slice(28, 36)
_WORD = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Superblock:
    """The parts of a superblock that matter before HDF5 opens the file."""

    raw: bytes

    @property
    def is_hdf5(self) -> bool:
        """True when the file begins as an HDF5 file does."""
        return self.raw[: len(SIGNATURE)] == SIGNATURE and len(self.raw) > FLAGS_BYTE

    @property
    def left_open(self) -> bool:
        """True when a writer has the file open, or died."""
        return self.raw[VERSION_BYTE] == 3 and self.raw[FLAGS_BYTE] != 0

    @property
    def is_sound(self) -> bool:
        """True when the checksum of a version 3 superblock with 8-byte offsets is right."""
        expected = int.from_bytes(self.raw[CHECKSUM], "little")
        return self.raw[OFFSET_SIZE_BYTE] == 8 and lookup3(self.raw[:CHECKED_BYTES]) == expected

    @property
    def end_of_file(self) -> int:
        """Address of the end of the file: what HDF5 uses of it."""
        return int.from_bytes(self.raw[END_OF_FILE], "little")

    def as_closed(self, file_bytes: int) -> bytes:
        """The same superblock without the writer's flag, of a file that ends where its bytes do.

        A writer that died within a flush had written chunks, and the index that leads to them, but not yet how far the
        file goes; what lies behind the old end would be refused.
        """
        cleared = bytearray(self.raw[:CHECKED_BYTES])
        cleared[FLAGS_BYTE] = 0
        cleared[END_OF_FILE] = max(self.end_of_file, file_bytes).to_bytes(8, "little")
        return bytes(cleared) + lookup3(bytes(cleared)).to_bytes(4, "little")


def read_superblock(stream: BinaryIO) -> Superblock:
    """Read the first bytes of a seekable stream, and go back to its start."""
    stream.seek(0)
    raw = stream.read(CHECKSUM.stop)
    stream.seek(0)
    return Superblock(raw)


class AsClosed(io.RawIOBase):
    """A read-only view of a file that was left open, with its superblock as after a clean close."""

    def __init__(self, stream: BinaryIO, superblock: Superblock) -> None:
        super().__init__()
        self._stream = stream
        self._start = superblock.as_closed(stream.seek(0, os.SEEK_END))
        stream.seek(0)

    def readable(self) -> bool:
        """Always."""
        return True

    def seekable(self) -> bool:
        """Always."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move like the stream below."""
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        """Where the stream below stands."""
        return self._stream.tell()

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read from the stream below, with the first bytes replaced."""
        position = self._stream.tell()
        block = self._stream.read(len(buffer))
        if position < len(self._start):
            start = self._start[position : position + len(block)]
            block = start + block[len(start) :]
        buffer[: len(block)] = block
        return len(block)


def lookup3(data: bytes) -> int:
    """Jenkins' lookup3 hash (hashlittle, initial value 0) of `data`, 32 bits."""
    a = b = c = (0xDEADBEEF + len(data)) & _WORD
    if not data:
        return c
    blocks = range(0, len(data), 12)
    for start in blocks:
        part = data[start : start + 12].ljust(12, b"\0")
        a = (a + int.from_bytes(part[0:4], "little")) & _WORD
        b = (b + int.from_bytes(part[4:8], "little")) & _WORD
        c = (c + int.from_bytes(part[8:12], "little")) & _WORD
        a, b, c = _mix(a, b, c) if start != blocks[-1] else _finish(a, b, c)
    return c


def _mix(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _WORD) ^ _rotate(c, bits)
        c = (c + b) & _WORD
        a, b, c = b, c, a
    return a, b, c


def _finish(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotate(b, bits)) & _WORD
        a, b, c = b, c, a
    return c, a, b


def _rotate(word: int, bits: int) -> int:
    return ((word << bits) | (word >> (32 - bits))) & _WORD
