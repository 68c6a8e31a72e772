"""Help teaches by example, fits 80 columns, and no example of it is wrong."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence

import click
import pytest
from click.testing import CliRunner

from divtrace.commands.main import COMMANDS, cli
from engine.tune.measure import ROW_COUNTS


def help_of(*command: str) -> list[str]:
    """Lines of a command's help on a terminal of 80 columns."""
    answer = CliRunner().invoke(cli, [*command, "--help"], terminal_width=80, prog_name="divtrace")
    assert answer.exit_code == 0, answer.output
    return answer.output.splitlines()


def examples_of(lines: Sequence[str]) -> list[str]:
    """Lines below `Examples:` up to the next empty one."""
    below = lines[[line.strip() for line in lines].index("Examples:") + 1 :]
    return [line.strip() for line in below[: below.index("")]]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_two_examples_and_fits_the_width(name: str) -> None:
    lines = help_of(name)
    assert max(map(len, lines)) <= 80
    examples = examples_of(lines)
    assert len(examples) >= 2
    assert sum(line.startswith(f"divtrace {name}") for line in examples) >= 2


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_every_example_is_a_command_line_that_is_understood(name: str) -> None:
    for example in examples_of(help_of(*filter(None, [name]))):
        line = example.split("   ")[0]  # the group's examples say what they are for, to the right
        words: list[list[str]] = [[]]
        for word in shlex.split(line, comments=True):
            if word in ("||", "&&"):
                words.append([])
            else:
                words[-1].append(word)
        for command in words:
            parse(command)


def parse(words: list[str]) -> None:
    """Parse a command line as `divtrace` would, up to a redirection."""
    words = words[: words.index(">")] if ">" in words else words
    if words[0] != "divtrace":
        assert words[0] == "."  # reading a script that was just written
        return
    found = cli.get_command(click.Context(cli), words[1])
    assert found is not None, words
    found.make_context(words[1], words[2:])


def test_an_example_that_is_wrong_would_be_noticed() -> None:
    with pytest.raises(click.UsageError):
        parse(["divtrace", "diff", "a.h5", "b.h5", "--requests", "x"])


def test_the_overview_lists_every_command_and_fits() -> None:
    lines = help_of()
    assert max(map(len, lines)) <= 80
    assert {line.split()[0] for line in lines[lines.index("Commands:") + 1 :]} >= set(COMMANDS)


def test_tune_says_its_row_counts() -> None:
    assert (len(ROW_COUNTS), ROW_COUNTS[0], ROW_COUNTS[-1]) == (10, 1, 128)
    assert "by default ten, from 1 to 128." in " ".join(" ".join(help_of("tune")).split())


def test_help_loads_neither_mlx_nor_hdf5() -> None:
    program = (
        "import sys, click\n"
        "from divtrace.commands.main import COMMANDS, cli\n"
        "for name in COMMANDS:\n"
        "    cli.get_command(click.Context(cli), name).get_help(click.Context(cli))\n"
        "print(sorted({'mlx', 'h5py', 'numpy', 'pydantic'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
