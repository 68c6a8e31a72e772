"""Options and console handling that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from divtrace.recording import StepCallback
from engine.engine import Engine


def stdout_console() -> Console:
    """Where answers go: colour and real width on a terminal, plain 80 columns in a pipe."""
    return Console(width=None if sys.stdout.isatty() else 80, highlight=False, soft_wrap=False)


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output; NaN becomes null, so that every parser reads it."""
    click.echo(json.dumps(_plain(document), indent=2, ensure_ascii=False, allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


@contextmanager
def step_progress(description: str) -> Iterator[StepCallback]:
    """A bar over committed tokens on standard error; silent when that is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=None)

        def advance(engine: Engine) -> None:
            states = engine.states.values()
            total = sum(s.request.max_tokens for s in states)
            progress.update(task, total=total, completed=sum(len(s.output) for s in states))

        yield advance


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    """`name:key=value,key=value`; a dotted key reaches into a group (`speculation.tokens=4`).

    Raises:
        click.BadParameter: a part has no `=`.
    """
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{part!r} is not key=value; write --arm {name or 'NAME'}:max_active=1.")
        target = values
        *groups, leaf = key.strip().split(".")
        for group in groups:
            target = target.setdefault(group, {})
        target[leaf] = _scalar(value.strip())
    return name, values


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


trace_argument = click.Path(path_type=Path)
