"""Reads a trace lazily, column by column, and trusts nothing in it. Must not know alignment or blame.

A trace is an input from somebody else: every length, offset, id, type and link is checked before it is used,
and a failed check is one TraceError that names the file and the place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from divtrace.errors import EvidenceError, TraceError
from divtrace.trace.guarded_file import DAMAGED, GuardedDataset, has_name, open_dataset, open_group
from divtrace.trace.header import Header
from divtrace.trace.layout import all_tables, column_dtype, column_width
from divtrace.trace.references import SPANS, largest_row_number, referred_table
from divtrace.trace.schema import FLUSHES, FOOTER, Column, Table
from divtrace.trace.seals import last_sealed_lengths
from divtrace.trace.source import OpenedFile, open_file, read_header

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from divtrace.verdict.records import BlameResult

CACHED_COLUMN_BYTES = 16 << 20
LATER_COLUMNS = frozenset(
    {("sampled", "committed_token"), (FOOTER.name, "failure_offset"), (FOOTER.name, "failure_count")}
)
"""Columns that the first traces of schema 1 do not have."""
LONGEST_FAILURE_BYTES = 2000
_SCHEMA: Mapping[str, Table] = {table.name: table for table in all_tables()}


class Trace:
    """A trace that is open for reading. Use `open_trace`; close it, or use it as a context manager.

    It shows the steps that were complete at the last flush when it was opened (or refreshed), and nothing of
    a later, half-written one. Arrays that it returns are read-only and may be shared.
    """

    def __init__(self, opened: OpenedFile) -> None:
        self.path = opened.name
        self._opened = opened
        self._file = opened.file
        self.header: Header = read_header(opened)
        self._datasets: dict[tuple[str, str], GuardedDataset] = {}
        self._cache: dict[tuple[str, str], npt.NDArray[Any]] = {}
        self._torn: set[str] = set()
        self._lengths = self._read_lengths()

    @property
    def step_count(self) -> int:
        """Complete steps."""
        return self.length("steps")

    @property
    def clean_end(self) -> bool:
        """True when the run ended and closed the file; False after a crash and while it is being written."""
        return self._lengths[FOOTER.name] > 0

    @property
    def interrupted(self) -> bool:
        """True when Ctrl-C ended the run."""
        return self.clean_end and bool(self.column(FOOTER.name, "interrupted")[-1])

    @property
    def failure(self) -> str:
        """The sentence of the error that ended the run, in printable characters; empty when none did."""
        if not self.clean_end or not self.is_stored(FOOTER.name, "failure_offset"):
            return ""
        offset, count = (self._cell(FOOTER.name, f"failure_{part}", 0) for part in ("offset", "count"))
        if offset + count > self.length("string_bytes"):
            raise TraceError(f"{self.path}: footer: its sentence points past the end of string_bytes; {DAMAGED}.")
        count = min(count, LONGEST_FAILURE_BYTES)
        sentence = self.column("string_bytes", "value", offset, offset + count).tobytes().decode(errors="replace")
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in sentence)

    @property
    def is_complete(self) -> bool:
        """True when the run served everything that it was asked for."""
        return self.clean_end and not self.interrupted and not self.failure

    @property
    def torn_columns(self) -> list[str]:
        """Columns read so far whose last chunk did not fit its checksum, as a write that was cut short leaves it."""
        return sorted(self._torn)

    def length(self, table: str) -> int:
        """Complete rows of a table.

        Raises:
            KeyError: the schema has no such table.
        """
        return self._lengths[_SCHEMA[table].name]

    def has_column(self, table: str, column: str) -> bool:
        """True when this trace's level holds the column."""
        found = _find_column(table, column)
        return self.header.level.includes(found.level) and table in (*self.header.tables, FLUSHES.name)

    def is_stored(self, table: str, column: str) -> bool:
        """True when the file holds the column: False below its level, and where an older divtrace had no such column.

        A column that was there from the first is said to be stored whether or not it is: reading it names the damage.
        """
        if not self.has_column(table, column):
            return False
        if (table, column) not in LATER_COLUMNS:
            return True
        where = f"{self.path}: table {table}"
        return has_name(open_group(self._file, table, where), column, where)

    def column(self, table: str, column: str, start: int = 0, stop: int | None = None) -> npt.NDArray[Any]:
        """Rows `start` to `stop` (None: the end) of a column in the schema's dtype, (rows,) or (rows, width).

        Row numbers, string indices and offsets in it are checked to be in range.

        Raises:
            EvidenceError: the trace was recorded at a level without this column.
            TraceError: the stored bytes are damaged or point outside of their tables.
            KeyError: the schema has no such column.
        """
        end = self.length(table)
        stop = end if stop is None else min(stop, end)
        start = min(max(start, 0), stop)
        cached = self._cache.get((table, column))
        if cached is None:
            dataset = self._dataset(table, column)
            row_bytes = dataset.dtype.itemsize * (1 if dataset.width is None else dataset.width)
            if end * row_bytes > CACHED_COLUMN_BYTES:
                return self._read(table, column, start, stop)
            cached = self._cache[table, column] = self._read(table, column, 0, end)
        return cached[start:stop]

    def iter_chunks(
        self, table: str, columns: Sequence[str], rows: int = 65536
    ) -> Iterator[Mapping[str, npt.NDArray[Any]]]:
        """Walk through a table in order, at most `rows` rows at a time: constant memory for any length."""
        for start in range(0, self.length(table), rows):
            yield {column: self.column(table, column, start, start + rows) for column in columns}

    def string(self, index: int) -> str:
        """An interned string.

        Raises:
            TraceError: there is no such string, or it is not UTF-8.
        """
        raw = self._bytes_at("strings", "string_bytes", int(index))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.path}: string {index} is not UTF-8; {DAMAGED}.") from error

    def token_text(self, token: int) -> bytes:
        """Text of a token id as bytes (maybe part of a character); empty when the trace does not hold it."""
        row = self._token_rows.get(int(token))
        return b"" if row is None else self._bytes_at("token_texts", "token_text_bytes", row)

    def token_list(self, offset: int, count: int) -> npt.NDArray[np.uint32]:
        """Token ids `offset .. offset + count` of the flat table, (count,) uint32.

        Raises:
            TraceError: they are not all there.
        """
        offset, count = int(offset), int(count)
        if min(offset, count) < 0 or offset + count > self.length("token_lists"):
            raise TraceError(f"{self.path}: token_lists: {count} tokens from {offset} on are not stored; {DAMAGED}.")
        return self.column("token_lists", "value", offset, offset + count)

    def request_ids(self) -> list[str]:
        """Ids of all requests, by row in `requests`."""
        return [self.string(index) for index in self.column("requests", "id_string")]

    def prompt(self, request: int) -> npt.NDArray[np.uint32]:
        """Prompt tokens of the request in row `request`."""
        offset = self._cell("requests", "prompt_offset", request)
        return self.token_list(offset, self._cell("requests", "prompt_count", request))

    def output(self, request: int) -> npt.NDArray[np.uint32]:
        """Tokens that the request in row `request` committed, in position order, whether or not it ended.

        Raises:
            TraceError: two different tokens were committed for one position, or a position is missing.
        """
        rows = self._committed_rows.get(int(request), np.zeros(0, np.int64))
        positions = self.column("sampled", "position")[rows].astype(np.int64)
        order = np.argsort(positions, kind="stable")
        if len(order) and (np.diff(positions[order]) != 1).any():
            raise TraceError(f"{self.path}: sampled: committed positions of request {request} have gaps; {DAMAGED}.")
        return self.committed_tokens()[rows[order]]

    def committed_tokens(self) -> npt.NDArray[np.uint32]:
        """Per row of `sampled`: the token that its request went on with; the chosen one where none was committed."""
        # The column came later than the first traces; no playback with other tokens is older.
        is_stored = self.is_stored("sampled", "committed_token")
        return self.column("sampled", "committed_token" if is_stored else "chosen")

    def ending(self) -> str:
        """One phrase: how the recording ended."""
        if not self.clean_end:
            return f"ended early at step {self.step_count}"
        if self.failure:
            return f"failed at step {self.step_count}: {self.failure}"
        return f"interrupted at step {self.step_count}" if self.interrupted else f"complete, {self.step_count} steps"

    def plot_timeline(self, result: BlameResult | None = None) -> Figure:
        """A plotly figure: requests by steps, segments coloured by kind, packed rows with the policy's threshold above.

        With a `result` of blame about this run, its origin and flip are marked and joined by an arrow.

        Raises:
            DivtraceError: plotly is not installed, or `result` is about other runs.
        """
        from divtrace.figures.timeline import plot_timeline

        return plot_timeline(self, result)

    def refresh(self) -> int:
        """See what a running writer has flushed since; return the number of complete steps."""
        for dataset in self._datasets.values():
            dataset.refresh()
        self._cache.clear()
        self.__dict__.pop("_token_rows", None)
        self.__dict__.pop("_committed_rows", None)
        self._lengths = self._read_lengths()
        return self.step_count

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def __repr__(self) -> str:
        state = f"level {self.header.level}, {self.ending()}" if self._file else "closed"
        return f"<Trace {self.path}: {state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @cached_property
    def _token_rows(self) -> dict[int, int]:
        return {int(token): row for row, token in enumerate(self.column("token_texts", "token"))}

    @cached_property
    def _committed_rows(self) -> dict[int, npt.NDArray[np.int64]]:
        committed = np.flatnonzero(self.column("sampled", "committed"))
        requests = self.column("sampled", "request")[committed]
        order = np.argsort(requests, kind="stable")
        owners, starts = np.unique(requests[order], return_index=True)
        return dict(zip(map(int, owners), np.split(committed[order], starts[1:]), strict=False))

    def _cell(self, table: str, column: str, row: int) -> int:
        if not 0 <= int(row) < self.length(table):
            raise TraceError(f"{self.path}: {table} has no row {row}; the trace holds {self.length(table)}.")
        return int(self.column(table, column, int(row), int(row) + 1)[0])

    def _bytes_at(self, table: str, target: str, row: int) -> bytes:
        offset, count = self._cell(table, "offset", row), self._cell(table, "count", row)
        if offset + count > self.length(target):
            raise TraceError(f"{self.path}: {table} row {row} points past the end of {target}; {DAMAGED}.")
        return self.column(target, "value", offset, offset + count).tobytes()

    def _read_lengths(self) -> dict[str, int]:
        lengths, checksums = (self._dataset(FLUSHES.name, name) for name in ("lengths", "checksum"))
        sealed = last_sealed_lengths(lengths, checksums, self.header.tables, self._opened.left_open)
        return {name: sealed.get(name, 0) for name in _SCHEMA}

    def _dataset(self, table: str, column: str) -> GuardedDataset:
        if not self._file:
            raise TraceError(f"{self.path} was closed; open it again with open_trace.")
        key = (table, column)
        if key not in self._datasets:
            found = _find_column(table, column)
            where = f"{self.path}: table {table}, column {column}"
            if not self.has_column(table, column):
                raise EvidenceError(
                    f"{where}: not recorded at level {self.header.level}; record with --level {found.level}."
                )
            group = open_group(self._file, table, f"{self.path}: table {table}")
            width = column_width(found, self.header)
            self._datasets[key] = open_dataset(group, column, column_dtype(found), width, where)
        return self._datasets[key]

    def _read(self, table: str, column: str, start: int, stop: int) -> npt.NDArray[Any]:
        dataset = self._dataset(table, column)
        dataset.check_holds(self.length(table))
        rows = self._read_rows(dataset, f"{table}/{column}", start, stop)
        self._check_references(table, _find_column(table, column), rows, start)
        rows.flags.writeable = False
        return rows

    def _read_rows(self, dataset: GuardedDataset, name: str, start: int, stop: int) -> npt.NDArray[Any]:
        try:
            return dataset.read(start, stop)
        except TraceError:
            if self.clean_end or not self._opened.left_open:
                raise
            rows = dataset.read_torn_tail(start, stop)
            self._torn.add(name)
            return rows

    def _check_references(self, table: str, column: Column, rows: npt.NDArray[Any], start: int) -> None:
        if not len(rows):
            return
        target = referred_table(column)
        span = SPANS.get((table, column.name))
        if span is not None:
            target = span.target
            counts = self.column(table, span.count, start, start + len(rows)).astype(np.float64)
            in_range = bool((rows.astype(np.float64) + counts <= self.length(target)).all())
        elif target is not None:
            in_range = int(rows.max()) <= largest_row_number(table, column, self.length(target))
        else:
            return
        if not in_range:
            raise TraceError(
                f"{self.path}: table {table}, column {column.name}: points past the end of {target}; {DAMAGED}."
            )


def open_trace(source: Any) -> Trace:
    """Open a trace for reading: a path, a URL that fsspec knows, or a binary file object that can seek.

    Raises:
        TraceError: no such file, not a trace, damaged, or of a newer schema.
    """
    opened = open_file(source)
    try:
        return Trace(opened)
    except BaseException:
        opened.close()
        raise


def _find_column(table: str, column: str) -> Column:
    for candidate in _SCHEMA[table].columns:
        if candidate.name == column:
            return candidate
    raise KeyError(f"table {table} has no column {column}")
