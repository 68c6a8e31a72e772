"""Errors that end a command with one sentence and exit code 2."""

from __future__ import annotations


class DivtraceError(Exception):
    """A user's mistake or missing evidence: the message says what is wrong, where, and what to do."""


class TraceError(DivtraceError):
    """A file that is not a trace, is damaged, or is of a schema that this version cannot read."""


class EvidenceError(DivtraceError):
    """The traces are sound, but do not hold what the question needs; the message says what to record."""
