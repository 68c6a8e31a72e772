"""The flush table: which rows of every table are complete. Must not know what the tables hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xxhash

from divtrace.errors import TraceError
from divtrace.trace.guarded_file import DAMAGED, GuardedDataset


def last_sealed_lengths(
    lengths: GuardedDataset, checksums: GuardedDataset, tables: Sequence[str], left_open: bool
) -> dict[str, int]:
    """Rows of each table that the last complete flush made durable.

    In a file that was left open, the flush that was cut short may leave a last line whose two columns differ in
    length or whose bytes are torn: that line is skipped. Anything else that does not fit its checksum is damage.

    Raises:
        TraceError: no line is sound.
    """
    count = min(lengths.rows, checksums.rows)
    if not left_open and lengths.rows != checksums.rows:
        raise TraceError(f"{lengths.where}: {lengths.rows} rows beside {checksums.rows} checksums; {DAMAGED}.")
    first = max(count - (2 if left_open else 1), 0)
    lengths.check_holds(count)
    checksums.check_holds(count)
    lines = lengths.read(first, count)
    sums = checksums.read(first, count)
    for line, checksum in zip(lines[::-1], sums[::-1], strict=True):
        if xxhash.xxh3_64_intdigest(np.ascontiguousarray(line).tobytes()) == checksum:
            return dict(zip(tables, map(int, line), strict=True))
    raise TraceError(f"{lengths.where}: no complete flush; {DAMAGED}.")
