"""Which files a recording may write: new ones, what an earlier recording left unfinished, or all with leave.

Must not know how a trace is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from divtrace.errors import DivtraceError, TraceError
from divtrace.trace.disk_reserve import is_being_written
from divtrace.trace.reader import open_trace


@dataclass(frozen=True, slots=True)
class Replaced:
    """An unfinished trace that a recording takes the place of; `ending` says how it ended."""

    path: Path
    ending: str

    def __str__(self) -> str:
        return f"{self.path}: {self.ending.rstrip('.')}; recording it again."


def unfinished_targets(paths: Sequence[Path], overwrite: bool) -> tuple[Replaced, ...]:
    """Check all files before the first one is written; return the unfinished traces among them.

    A trace that ended early, failed, or stopped at Ctrl-C is not what its command was to make: the same command
    records it anew.

    Raises:
        DivtraceError: another process is recording into a file; or a complete trace, or a file that is no trace, is
            there and `overwrite` is False.
    """
    found = []
    for path in paths:
        if not path.exists():
            continue
        if has_writer(path):
            raise DivtraceError(f"{path}: another process is recording into this file; wait for it, or use another -o.")
        ending = _unfinished_ending(path)
        if ending is not None:
            found.append(Replaced(path, ending))
        elif not overwrite:
            raise DivtraceError(
                f"{path}: the file exists; choose another folder with -o, or overwrite it with --force."
            )
    return tuple(found)


def has_writer(path: Path) -> bool:
    """True while a process that records into this file lives."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return is_being_written(file.fileno())


def _unfinished_ending(path: Path) -> str | None:
    try:
        with open_trace(path) as trace:
            is_whole = trace.clean_end and not trace.interrupted and not trace.failure
            return None if is_whole else trace.ending()
    except TraceError:
        return None
