"""Validates a trace: that every column reads, and that its tables agree with each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from divtrace.errors import TraceError
from divtrace.trace.checks.batches import check_batches, check_digests
from divtrace.trace.checks.choices import (
    check_choices,
    check_commits,
    check_drafts,
    check_failures,
    check_outputs,
)
from divtrace.trace.checks.finding import Finding
from divtrace.trace.checks.lifetimes import check_lifetimes, check_provenance
from divtrace.trace.checks.sequences import check_inputs, check_places
from divtrace.trace.checks.values import check_flags, check_sums, check_values
from divtrace.trace.reader import Trace
from divtrace.trace.schema import TABLES

CHUNK_ROWS = 65536
INVARIANTS: tuple[Callable[[Trace], Iterator[Finding]], ...] = (
    check_batches,
    check_lifetimes,
    check_provenance,
    check_places,
    check_choices,
    check_commits,
    check_outputs,
    check_failures,
    check_drafts,
    check_inputs,
    check_digests,
    check_values,
    check_sums,
    check_flags,
)


def check_trace(trace: Trace) -> list[Finding]:
    """Everything that is wrong with an open trace, in a stable order; empty when it is sound.

    Columns that cannot be read are findings of their own; invariants are looked at only when all columns read.
    """
    unreadable = list(_check_columns(trace))
    if unreadable:
        return unreadable
    findings = [Finding(name, "its last chunk does not fit its checksum") for name in trace.torn_columns]
    for check in INVARIANTS:
        try:
            findings.extend(check(trace))
        except TraceError as error:
            findings.append(Finding(trace.path, str(error)))
    return findings


def _check_columns(trace: Trace) -> Iterator[Finding]:
    for table in TABLES:
        for column in table.columns:
            if not trace.is_stored(table.name, column.name):
                continue
            try:
                for _ in trace.iter_chunks(table.name, (column.name,), CHUNK_ROWS):
                    pass
            except TraceError as error:
                yield Finding(f"{table.name}/{column.name}", str(error))
