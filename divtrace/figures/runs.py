"""Finds the runs of a result again when it is to be drawn: a result holds what was found, not the traces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from divtrace.api.sources import Source, opened_pair
from divtrace.divergence.records import DiffResult, RunSummary
from divtrace.errors import DivtraceError
from divtrace.trace.reader import Trace


@contextmanager
def runs_of(result: DiffResult, a: Source | None, b: Source | None) -> Iterator[tuple[Trace, Trace]]:
    """Both runs, open: those given (two, or a bundle), else those at the paths that were compared.

    Raises:
        DivtraceError: they are not there any more, or are other runs.
    """
    if a is None and b is None:
        a, b = (_path_of(summary) for summary in (result.run_a, result.run_b))
    if a is None:
        raise DivtraceError("plot(a, b) takes both traces, or a bundle, or none.")
    with opened_pair(a, b) as (trace_a, trace_b):
        for trace, summary in ((trace_a, result.run_a), (trace_b, result.run_b)):
            if (trace.step_count, str(trace.header.level)) != (summary.steps, summary.level):
                raise DivtraceError(
                    f"{trace.path} is not the run that was compared: it has {trace.step_count} steps at level "
                    f"{trace.header.level}, that had {summary.steps} at level {summary.level}; compare again."
                )
        yield trace_a, trace_b


def _path_of(summary: RunSummary) -> str:
    if "://" not in summary.path and not Path(summary.path).exists():
        raise DivtraceError(f"{summary.path} is not there any more; give the traces, or the bundle: plot(a, b).")
    return summary.path
