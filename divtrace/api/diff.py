"""`divtrace.diff`: the first divergent token of two runs."""

from __future__ import annotations

from divtrace.api.sources import Source, opened_pair
from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import DiffResult


def diff(a: Source, b: Source | None = None, *, request: str | None = None) -> DiffResult:
    """Find the first token at which two runs differ, and what differs before it.

    Args:
        a: the reference run: a path, URL, file object or open trace; or a bundle, which holds both runs.
        b: the other run.
        request: id of the only request to compare; by default all that both runs have.

    Returns:
        What `divtrace diff --json` prints, as records; `result.plot()` draws gap and drift.

    Raises:
        DivtraceError: `request` is not in both runs. TraceError: a trace cannot be read.
    """
    with opened_pair(a, b) as (trace_a, trace_b):
        return diff_traces(trace_a, trace_b, request)
