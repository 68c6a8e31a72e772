"""Kinds of arguments that commands share, and what the shell offers for them. Completion must stay quick and silent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

MOST_COMPLETED_BYTES = 1 << 30
POLICIES = ("native", "gemv", "gemm", "threshold:4", "tile:8", "invariant")


class TracePath(click.Path):
    """A trace: a path, or a URL, which stays as it was typed."""

    name = "trace"

    def __init__(self, endings: tuple[str, ...] = (".h5",)) -> None:
        super().__init__(path_type=Path)
        self._endings = endings

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """A path, or the text of a URL: a path would swallow one of its slashes."""
        if isinstance(value, str) and "://" in value:
            return value
        return super().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG002
        """Traces of the folder where it holds nothing else to go on with; otherwise what the shell itself offers."""
        folder, start = os.path.split(incomplete)
        try:
            entries = [entry for entry in os.scandir(folder or ".") if entry.name.startswith(start)]
            if any(entry.is_dir() for entry in entries if start or not entry.name.startswith(".")):
                return [CompletionItem(incomplete, type="file")]
        except OSError:
            return []
        traces = [os.path.join(folder, entry.name) for entry in entries if entry.name.endswith(self._endings)]  # noqa: PTH118
        return [CompletionItem(trace) for trace in sorted(traces)] or [CompletionItem(incomplete, type="file")]


TRACE = TracePath()
TRACE_OR_BUNDLE = TracePath((".h5", ".zip"))


def complete_request(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Request ids of the trace that was typed before the option; none where it cannot be read at once."""
    del parameter
    from divtrace.trace.reader import open_trace

    path = _first_argument(context)
    try:
        if path is None or path.stat().st_size > MOST_COMPLETED_BYTES:
            return []
        with open_trace(path) as trace:
            names = trace.request_ids()
    except Exception:
        return []
    return [CompletionItem(name) for name in names if name.startswith(incomplete) and name.isprintable()]


def complete_arm(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`NAME:` for arms of the workload that was typed before, then settings, and the policies there are."""
    del parameter
    from engine.settings import EngineSettings

    name, colon, rest = incomplete.partition(":")
    if not colon:
        return [CompletionItem(f"{arm}:") for arm in _arms(context) if arm.startswith(name)]
    before, comma, last = rest.rpartition(",")
    if last.startswith("policy="):
        offered = [f"policy={policy}" for policy in POLICIES]
    else:
        offered = [f"{setting}=" for setting in EngineSettings.model_fields]
    return [CompletionItem(f"{name}:{before}{comma}{text}") for text in offered if text.startswith(last)]


def _arms(context: click.Context) -> list[str]:
    from engine.workload import read_workload

    try:
        workload = _first_argument(context)
        return [] if workload is None else list(read_workload(workload).arms)
    except Exception:
        return []


def _first_argument(context: click.Context) -> Path | None:
    """What was typed for the command's first argument; an unfinished option makes click leave it unparsed."""
    names = [parameter.name for parameter in context.command.params if isinstance(parameter, click.Argument)]
    given = [context.params.get(name or "") for name in names[:1]] + list(context.args)
    return next((Path(value) for value in given if value is not None), None)
