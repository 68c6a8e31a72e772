"""Pages whose console blocks are executed: files are written, commands are run in order, outputs are compared.

In a page, a fenced block with a title is a file, and a fenced `console` block holds commands (lines behind `$ `) with
the output that each one prints. `python -m tests.docs.console PAGE --write` runs a page and writes into it what was
printed.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE_BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
CONSOLE_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXPORT = re.compile(r"export (\w+)=(\S*)")
MEASURED = re.compile(r"\b\d+(?:[.,]\d+)* (?:µs|ms|s|kB|MB)(?!\w)")
COMMAND_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a page and the output that stands below it, lines without their trailing spaces."""

    line: str
    output: str


@dataclass(frozen=True, slots=True)
class Page:
    """What is executable in a page. `files` maps names to contents; `blocks` are console blocks in order."""

    files: dict[str, str]
    blocks: tuple[tuple[Command, ...], ...]

    @property
    def commands(self) -> list[Command]:
        """All commands, in order."""
        return [command for block in self.blocks for command in block]


def parse_page(text: str) -> Page:
    """Files and console blocks of a page."""
    blocks = tuple(_commands(match.group(1)) for match in CONSOLE_BLOCK.finditer(text))
    return Page(dict(FILE_BLOCK.findall(text)), blocks)


def _commands(block: str) -> tuple[Command, ...]:
    found: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif not found:
            raise ValueError(f"a console block begins with output: {line!r}")
        else:
            found[-1][1].append(line)
    return tuple(Command(line, tidy("\n".join(output))) for line, output in found)


def run_page(page: Page, folder: Path) -> list[str]:
    """Write the files, run the commands one after another in `folder`; returns what each of them printed."""
    for name, content in page.files.items():
        (folder / name).write_text(content, encoding="utf-8")
    environment = _environment(folder)
    printed = []
    for command in page.commands:
        exported = EXPORT.fullmatch(command.line)
        if exported:
            environment[exported.group(1)] = exported.group(2)
            printed.append("")
            continue
        done = subprocess.run(
            ["bash", "-c", command.line],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        printed.append(tidy(done.stdout))
    return printed


def _environment(folder: Path) -> dict[str, str]:
    """This interpreter's divtrace on the path, 80 columns and no colour, whoever runs the test."""
    programs = folder / ".programs"
    programs.mkdir()
    program = programs / "divtrace"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m divtrace "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    changed = {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "TERM": "dumb"}
    ignored = {"COLUMNS", "LINES", "FORCE_COLOR"}
    return {name: value for name, value in os.environ.items() if name not in ignored} | changed


def tidy(output: str) -> str:
    """Without trailing spaces and without empty lines at either end."""
    return "\n".join(line.rstrip() for line in output.splitlines()).strip("\n")


def comparable(output: str) -> str:
    """Times and sizes are not compared; everything else is."""
    return MEASURED.sub("#", output)


def differences(page: Page, printed: list[str]) -> str:
    """A unified diff of all outputs that are not as the page shows them; empty when all are."""
    parts = []
    for command, output in zip(page.commands, printed, strict=True):
        shown, real = comparable(command.output), comparable(output)
        if shown != real:
            lines = difflib.unified_diff(shown.splitlines(), real.splitlines(), "on the page", "printed", lineterm="")
            parts.append("\n".join([f"$ {command.line}", *lines]))
    return "\n\n".join(parts)


def refreshed(text: str, page: Page, printed: list[str]) -> str:
    """The page with outputs replaced; an output that differs in times and sizes alone is left as it is."""
    left = iter(printed)

    def block(match: re.Match[str]) -> str:
        lines = []
        for command in _commands(match.group(1)):
            output = next(left)
            kept = command.output if comparable(output) == comparable(command.output) else output
            lines += [f"$ {command.line}", *([kept] if kept else []), ""]
        return "\n".join(["```console", *lines[:-1], "```"])

    return CONSOLE_BLOCK.sub(block, text)


def main() -> int:
    """Run a page; show how it differs, or write what was printed."""
    parser = argparse.ArgumentParser(prog="python -m tests.docs.console", description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--write", action="store_true", help="write the outputs into the page")
    options = parser.parse_args()
    text = options.page.read_text(encoding="utf-8")
    page = parse_page(text)
    with tempfile.TemporaryDirectory() as folder:
        printed = run_page(page, Path(folder))
    found = differences(page, printed)
    print(found or "every output is as the page shows it")
    if options.write:
        options.page.write_text(refreshed(text, page, printed), encoding="utf-8")
    return 1 if found and not options.write else 0


if __name__ == "__main__":
    sys.exit(main())
