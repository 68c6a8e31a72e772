"""Finds what a case's bits depend on, one row count after another. Must not know which kernels there are."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from divtrace.probing.budget import Budget
from divtrace.probing.cases import Case, Output, Rows
from divtrace.probing.result import Findings
from divtrace.probing.words import case_words
from engine.kernels.native import native_kernel

PADDED_TO = 8
CALLS_PER_ROW_COUNT = 7
STRANGERS = (np.float32(7.0), np.float32(np.inf), np.float32(np.nan))
MANTISSA_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}


def as_float(array: Output, dtype: str) -> npt.NDArray[np.float64]:
    """Values as float64; bfloat16 arrives as uint16."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def ulps_of_row(difference: float, row: npt.NDArray[np.float64], dtype: str) -> float:
    """A difference in units of the last place of the row's largest value: what rounding could explain is near 1."""
    largest = float(np.abs(row).max())
    if not 0 < largest < np.inf:
        return 0.0
    return difference / 2.0 ** (np.floor(np.log2(largest)) - MANTISSA_BITS[dtype])


class Measurement:
    """Accumulates what the row counts of one case show."""

    def __init__(self, case: Case, rows: Rows) -> None:
        self._case, self._rows = case, rows
        self._alone: dict[int, Output] = {}
        self._found: dict[str, list[int]] = {
            name: [] for name in ("changed", "index", "neighbour", "padding", "thread", "repeat")
        }
        self._done: list[int] = []
        self._classes: dict[bytes, list[int]] = {}
        self._time_s: dict[int, float] = {}
        self._distinct, self._most_ulps, self._largest = 1, 0.0, 0.0

    def add(self, count: int) -> None:
        """Try one row count in every way."""
        case, rows = self._case, self._rows[:count]
        first = self._timed(count, rows)
        second = self._timed(count, rows)
        self._note("repeat", count, first.tobytes() != second.tobytes())
        changed = self._compare_with_alone(count, first)
        # Where a row's place is one of its inputs, row 0 of another count is another row: only changes can be grouped.
        result = first[0].tobytes() if case.rows_are_alike else bytes([changed])
        self._classes.setdefault(result, []).append(count)
        if case.rows_are_alike:
            self._try_identical_rows(count)
            self._try_padding(count, rows, first)
        self._try_neighbours(count, rows, first)
        if case.run_on_one_thread is not None:
            self._note("thread", count, case.run_on_one_thread(rows).tobytes() != first.tobytes())
        self._done.append(count)

    def expected_s(self, done: int, following: int) -> float:
        """Seconds that `following` rows will take, from the best call of `done` rows, taking time as linear in rows."""
        return CALLS_PER_ROW_COUNT * self._time_s[done] * following / done

    def findings(self, skipped: tuple[int, ...]) -> Findings:
        """The record of all row counts added."""
        case, found = self._case, {name: tuple(counts) for name, counts in self._found.items()}
        labels: tuple[str, ...] = ()
        if case.native_call is not None:
            labels = tuple(native_kernel(replace(case.native_call, rows=count)).label for count in self._done)
        return Findings(
            operation=case.operation,
            implementation=case.implementation,
            shape=case.shape,
            dtype=case.dtype,
            threads=case.threads,
            row_counts=tuple(self._done),
            changed=found["changed"],
            index_dependent=found["index"],
            neighbour_dependent=found["neighbour"],
            padding_dependent=found["padding"],
            thread_dependent=None if case.run_on_one_thread is None else found["thread"],
            unrepeatable=found["repeat"],
            classes=tuple(tuple(counts) for counts in self._classes.values()),
            distinct_results=self._distinct,
            most_ulps=self._most_ulps,
            largest_difference=self._largest,
            time_s=dict(self._time_s),
            skipped=skipped,
            labels=labels,
        )

    def _note(self, what: str, count: int, happened: bool) -> None:
        if happened:
            self._found[what].append(count)

    def _timed(self, count: int, rows: Rows) -> Output:
        started = time.perf_counter()
        out = self._case.run(rows)
        elapsed = time.perf_counter() - started
        self._time_s[count] = min(elapsed, self._time_s.get(count, elapsed))
        return out

    def _compare_with_alone(self, count: int, together: Output) -> bool:
        changed = False
        for index in sorted({0, 1, count // 2, count - 2, count - 1} & set(range(count))):
            alone = self._row_alone(count, index)
            if alone.tobytes() == together[index].tobytes():
                continue
            changed = True
            expected, got = (as_float(row, self._case.dtype) for row in (alone, together[index]))
            difference = float(np.nanmax(np.abs(expected - got)))
            self._largest = max(self._largest, difference)
            self._most_ulps = max(self._most_ulps, ulps_of_row(difference, expected, self._case.dtype))
        self._note("changed", count, changed)
        return changed

    def _row_alone(self, count: int, index: int) -> Output:
        if self._case.alone is not None:
            return self._case.row_alone(self._rows[:count], index)
        if index not in self._alone:
            self._alone[index] = self._case.row_alone(self._rows, index)
        return self._alone[index]

    def _try_identical_rows(self, count: int) -> None:
        identical = np.ascontiguousarray(np.broadcast_to(self._rows[0], (count, self._rows.shape[1])))
        results = {row.tobytes() for row in self._case.run(identical)}
        self._distinct = max(self._distinct, len(results))
        self._note("index", count, len(results) > 1)

    def _try_padding(self, count: int, rows: Rows, plain: Output) -> None:
        padded = np.zeros((_padded(count), rows.shape[1]), np.float32)
        padded[:count] = rows
        self._note("padding", count, self._case.run(padded)[:count].tobytes() != plain.tobytes())

    def _try_neighbours(self, count: int, rows: Rows, plain: Output) -> None:
        if count == 1:
            return
        strange = np.full_like(rows, STRANGERS[count % len(STRANGERS)])
        strange[0] = rows[0]
        self._note("neighbour", count, self._case.run(strange)[0].tobytes() != plain[0].tobytes())


def measure(
    case: Case, rows: Rows, row_counts: tuple[int, ...], share_s: float, budget: Budget | None = None
) -> Findings:
    """Try `row_counts` in order until the next one would probably not fit into `share_s` seconds; at least one."""
    budget = budget or Budget()
    with budget.first_call(case_words(case)):
        case.run(rows[:1])
    started_s, measurement = budget.spent_s, Measurement(case, rows)
    for position, count in enumerate(row_counts):
        if position > 0:
            expected_s = measurement.expected_s(row_counts[position - 1], count)
            if budget.spent_s - started_s + expected_s > share_s:
                return measurement.findings(row_counts[position:])
        if budget.compiles:
            _compile(case, rows, count, budget)
        measurement.add(count)
    return measurement.findings(())


def _compile(case: Case, rows: Rows, count: int, budget: Budget) -> None:
    """Run what `count` rows run, with padding and without: a GPU compiles other kernels for other row counts."""
    with budget.first_call(case_words(case)):
        case.run(rows[:count])
        case.run(rows[: _padded(count)])


def _padded(count: int) -> int:
    return -(-count // PADDED_TO) * PADDED_TO
