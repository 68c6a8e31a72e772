"""Options and console handling that several commands share."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich import progress as bars
from rich.console import Console
from rich.status import Status

if TYPE_CHECKING:
    from divtrace.api.sources import Progress
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
    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
    )
    with bars.Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(description, total=None)

        def advance(engine: Engine) -> None:
            ended, going = engine.completions.values(), engine.states.values()
            done = sum(len(c.tokens) for c in ended) + sum(len(s.output) for s in going)
            progress.update(task, total=done + sum(s.remaining_output for s in going), completed=done)

        yield advance


@contextmanager
def status_line(first: str) -> Iterator[Progress]:
    """A line on standard error that says what is being done; silent when that is no terminal."""
    with Status(first, console=Console(stderr=True)) as status:
        yield status.update


def whole_numbers(text: str, option: str) -> list[int]:
    """`1,2,8` as numbers.

    Raises:
        click.BadParameter: it is something else.
    """
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers; write {option} 1,2,8.") from None
