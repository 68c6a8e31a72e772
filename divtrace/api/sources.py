"""What the functions take for a run: a path, a URL, a file object, or a trace that is open already."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TypeAlias

from divtrace.errors import DivtraceError
from divtrace.trace.bundle import Bundle, is_bundle
from divtrace.trace.reader import Trace, open_trace
from engine.errors import EngineError

Source: TypeAlias = str | os.PathLike[str] | IO[bytes] | Trace
Progress: TypeAlias = Callable[[str], None]
LONGEST_NAME = 100


@contextmanager
def opened(source: Source) -> Iterator[Trace]:
    """An open trace; one that was open before stays open.

    Raises:
        DivtraceError: `source` is nothing that a trace can be read from. TraceError: it is no trace.
    """
    if isinstance(source, Trace):
        yield source
        return
    if not isinstance(source, str | os.PathLike) and not hasattr(source, "read"):
        raise DivtraceError(f"{source!r} is no trace; give a path, a URL, a file object or an open trace.")
    with open_trace(source) as trace:
        yield trace


@contextmanager
def opened_runs(a: Source, b: Source | None) -> Iterator[tuple[Trace] | tuple[Trace, Trace]]:
    """The run at `a`, or two runs: those of `a` and `b`, or the two of a bundle.

    Raises:
        DivtraceError: one of them is nothing that a trace can be read from. TraceError: one is no trace.
    """
    if b is None and not _is_bundle(a):
        with opened(a) as trace:
            yield (trace,)
    else:
        with opened_pair(a, b) as traces:
            yield traces


@contextmanager
def opened_pair(a: Source, b: Source | None) -> Iterator[tuple[Trace, Trace]]:
    """Two open traces, or the two of a bundle where `b` is None.

    Raises:
        DivtraceError: `b` is None and `a` is no bundle. TraceError: one of them is no trace.
    """
    with ExitStack() as stack:
        if b is not None:
            yield stack.enter_context(opened(a)), stack.enter_context(opened(b))
            return
        if not isinstance(a, str | os.PathLike) or not _is_bundle(a):
            name = os.fspath(a) if isinstance(a, str | os.PathLike) else "the given trace"
            raise DivtraceError(f"{name} is no bundle; give two traces, or a file that divtrace bundle wrote.")
        bundle = stack.enter_context(Bundle(os.fspath(a)))
        first, second = bundle.traces
        # Where they were unpacked is gone when somebody reads the answer; where they came from says something.
        for trace, label, name in zip(bundle.traces, "ab", bundle.manifest.names, strict=True):
            trace.path = f"{os.fspath(a)}/{label}/{_file_name(name)}"
        yield first, second


def _file_name(text: str) -> str:
    """A file name that somebody else gave, without folders and with printable characters only."""
    name = text.replace("\\", "/").rsplit("/", 1)[-1][:LONGEST_NAME]
    return "".join(character if character.isprintable() else "?" for character in name)


def _is_bundle(source: Source) -> bool:
    return isinstance(source, str | os.PathLike) and is_bundle(os.fspath(source))


@contextmanager
def foreseen_errors() -> Iterator[None]:
    """The engine's errors as ours, with the same sentence: who uses the functions has one class to catch."""
    try:
        yield
    except EngineError as error:
        raise DivtraceError(str(error)) from error
