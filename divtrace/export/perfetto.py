"""Trace-event JSON for ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, TextIO

from divtrace.export.clock import read_clock
from divtrace.export.events import Event, run_events
from divtrace.render.text import visible
from divtrace.trace.reader import Trace

MEASURED = "steps follow each other without the pauses between them, which a trace does not keep"
UNTIMED = "no time was recorded: every step is drawn as one millisecond"


def perfetto_events(trace: Trace, other: Trace | None = None) -> dict[str, Any]:
    """One or two runs as a trace-event document; small runs only, `write_perfetto` streams.

    Raises:
        TraceError: the trace is damaged.
    """
    return {"traceEvents": list(_events(trace, other)), **_about(trace, other)}


def write_perfetto(path: Path | str, trace: Trace, other: Trace | None = None) -> Path:
    """Write one or two runs to `path`, event by event; a file that is there is replaced once the new one is complete.

    Raises:
        TraceError: a trace is damaged. OSError: the file cannot be written.
    """
    target = Path(path)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as file:
            _write(file, trace, other)
        beside.replace(target)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error
    finally:
        beside.unlink(missing_ok=True)
    return target


def _write(file: TextIO, trace: Trace, other: Trace | None) -> None:
    file.write(json.dumps(_about(trace, other), allow_nan=False)[:-1])
    file.write(', "traceEvents": [')
    for number, event in enumerate(_events(trace, other)):
        file.write("\n" if number == 0 else ",\n")
        file.write(json.dumps(event, allow_nan=False, separators=(",", ":")))
    file.write("\n]}\n")


def _events(trace: Trace, other: Trace | None) -> Iterator[Event]:
    runs = [trace] if other is None else [trace, other]
    return chain.from_iterable(run_events(run, number, _name(run)) for number, run in enumerate(runs, 1))


def _about(trace: Trace, other: Trace | None) -> dict[str, Any]:
    runs = [trace] if other is None else [trace, other]
    facts = {_name(run): f"{run.ending()}; {MEASURED if read_clock(run).is_measured else UNTIMED}" for run in runs}
    return {"displayTimeUnit": "ms", "otherData": {"source": "divtrace", **facts}}


def _name(trace: Trace) -> str:
    return visible(PurePath(str(trace.path)).stem)
