"""Benchmark 7: the fastest linear path by site shape and row count, as `tune` finds it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.bench.context import BenchContext
from engine.bench.report import Cell, Table
from engine.kernels.policy import LinearPath
from engine.tune import PathRange, ShapeTimings, tune
from engine.tune.choose import choose_paths


def run(bench: BenchContext) -> tuple[Table, ...]:
    """One table of choices, one of times."""
    counts = (1, 4, 16, 64) if bench.quick else (1, 2, 3, 4, 6, 8, 16, 32, 64)
    result = tune(bench.model, counts, spent_s=0.0 if bench.quick else 0.3, clock=bench.clock)
    choices = tuple(
        (timed.shape, describe(result.policy.shapes[timed.shape]), describe(choose_paths(without_numba(timed))))
        for timed in result.timings
    )
    return (
        Table("Fastest path by rows", ("shape KxN, storage", "path", "path where numba is not installed"), choices),
        Table(
            title="Best time of one call, ms",
            columns=("shape KxN, storage", "rows", *_paths(result.timings)),
            rows=tuple(row for timed in result.timings for row in _rows(timed)),
            notes=(
                "The sites of a shape are called one after another, so that weights come from memory as in a step. A "
                "path takes over where it saves 5 % or more.",
            ),
        ),
    )


def without_numba(timed: ShapeTimings) -> dict[int, dict[str, float]]:
    """Timings of the paths that need no optional package."""
    return {
        rows: {path: taken for path, taken in times.items() if path != LinearPath.INVARIANT}
        for rows, times in timed.milliseconds.items()
    }


def describe(ranges: Sequence[PathRange]) -> str:
    """`gemv up to 4 rows, then gemm-f32`."""
    parts = [f"{choice.path} up to {choice.max_rows} rows" for choice in ranges[:-1]]
    return ", ".join([*parts, f"{'then ' if parts else ''}{ranges[-1].path}"])


def _paths(timings: Sequence[ShapeTimings]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(path for timed in timings for times in timed.milliseconds.values() for path in times))


def _rows(timed: ShapeTimings) -> list[tuple[Cell, ...]]:
    return [(timed.shape, rows, *times.values()) for rows, times in sorted(timed.milliseconds.items())]
