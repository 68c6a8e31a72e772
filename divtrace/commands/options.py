"""Options and console handling that several commands share."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich import progress as bars
from rich.console import Console
from rich.status import Status

from divtrace.errors import DivtraceError

if TYPE_CHECKING:
    from divtrace.api.sources import Progress
    from divtrace.recording import StepCallback
    from engine.engine import Engine


PADDING = re.compile(r" +$", re.MULTILINE)


class PipedConsole(Console):
    """80 columns without the blanks that fill a line on a terminal: a comparison of two answers would show them."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As `Console.print`; what was printed reaches the reader at once."""
        with self.capture() as captured:
            super().print(*objects, **options)
        self.file.write(PADDING.sub("", captured.get()))
        self.file.flush()


def stdout_console() -> Console:
    """Where answers go: colour and real width on a terminal, plain 80 columns in a pipe."""
    if sys.stdout.isatty():
        return Console(highlight=False, soft_wrap=False)
    return PipedConsole(width=80, highlight=False, soft_wrap=False)


def refuse_unwritable(output: Path) -> None:
    """Say before the work, not after it, that there is no such place to write to.

    Raises:
        DivtraceError: `output` is a folder, or lies in none.
    """
    if output.is_dir():
        raise DivtraceError(f"{output} is a folder; give the name of a file with it, for example {output / 'out'}.")
    if not output.parent.is_dir():
        raise DivtraceError(f"{output}: there is no folder {output.parent}; make it first, or choose another.")


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
