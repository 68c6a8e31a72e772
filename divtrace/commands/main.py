"""The `divtrace` command: loads subcommands on demand, and turns every foreseen error into one sentence and exit
code 2.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from divtrace import __version__
from divtrace.errors import DivtraceError

COMMANDS = {
    "demo": "Tell the story of one diverging run on a real model, in a few minutes.",
    "record": "Run a workload in two or more arms and write a trace of each.",
    "diff": "Find the first divergent token of two traces.",
    "blame": "Find the earlier batch that caused a divergence, and prove it.",
    "replay": "Play a trace back and check that it reproduces bit for bit.",
    "show": "Look into a trace: requests, steps, one step's batch.",
    "report": "Write one HTML file that explains two runs, or one.",
    "check": "Is a trace sound? What is wrong, and where.",
    "export": "Write a timeline for Perfetto.",
    "bundle": "Pack two traces so that somebody else can run blame.",
    "probe": "At which row counts do this machine's kernels change?",
    "tune": "Measure the fastest kernel path per site shape and row count.",
    "doctor": "What this machine has, and what is missing.",
    "completion": "Print the script that completes commands in your shell.",
}
EXIT_TROUBLE = 2
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141


class ReaderLeft(Exception):
    """Who read our output (`| head`) has gone. click would make exit code 1 of it, which says "divergence" here."""


class LazyGroup(click.Group):
    """Imports a subcommand's module only when it is used, so that `--help` is quick."""

    def list_commands(self, context: click.Context) -> list[str]:  # noqa: ARG002
        """All subcommands, in the order of a user's work."""
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """The subcommand, None when there is none of that name."""
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"divtrace.commands.{name.replace('-', '_')}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand that was typed; a misspelt one is answered with the nearest."""
        if words and words[0] not in COMMANDS and not words[0].startswith("-"):
            nearest = difflib.get_close_matches(words[0], COMMANDS, 1)
            hint = f"did you mean {nearest[0]}" if nearest else f"there are {', '.join(COMMANDS)}"
            raise click.UsageError(f"no such command {words[0]!r}; {hint}", context)
        return super().resolve_command(context, words)

    def invoke(self, context: click.Context) -> Any:
        """Run the subcommand."""
        try:
            return super().invoke(context)
        except BrokenPipeError as error:
            raise ReaderLeft from error

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List subcommands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="divtrace")
def cli() -> None:
    """Find the first token at which two runs of a model differ, and the earlier batch that caused it.

    \b
    Examples:
      divtrace demo                               the whole story, on a real model
      divtrace record case.yaml -o runs           run its arms, one trace each
      divtrace diff runs/serial.h5 runs/batched.h5     the first divergent token
      divtrace blame runs/serial.h5 runs/batched.h5    the batch that caused it

    Every command explains itself: divtrace COMMAND --help.

    Exit codes: 0 no divergence, 1 divergence, 2 could not tell (bad input, missing evidence).
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `divtrace` script; never shows a traceback for a user's mistake."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from engine.errors import EngineError

    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if not given:
            cli.main(args=["--help"], prog_name="divtrace", standalone_mode=False)
            return EXIT_TROUBLE
        result: Any = cli.main(args=given, prog_name="divtrace", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return int(error.exit_code)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = f"divtrace {context.info_name}" if context is not None and context.parent is not None else "divtrace"
        click.echo(f"divtrace: {error.format_message().rstrip('.')}; run {command} --help for what it takes.", err=True)
        return EXIT_TROUBLE
    except (KeyboardInterrupt, click.exceptions.Abort):
        click.echo("divtrace: interrupted.", err=True)
        return EXIT_INTERRUPTED
    except (ReaderLeft, BrokenPipeError):
        # Nothing more can be written. The code is what a shell gives for this end; 0 and 1 are answers.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_READER_LEFT
    except (DivtraceError, EngineError) as error:
        click.echo(f"divtrace: {error}", err=True)
        return EXIT_TROUBLE
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        click.echo(f"divtrace: {place}{error.strerror or error}.", err=True)
        return EXIT_TROUBLE
    except MemoryError:
        click.echo("divtrace: out of memory; use a smaller workload or fewer kv_blocks.", err=True)
        return EXIT_TROUBLE
