"""Every divtrace command line on a page is one that the program takes: command, options, values, arms."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from divtrace.api.arms import parse_arm
from divtrace.commands.main import COMMANDS, cli
from engine.settings import parse_settings
from engine.settings_check import refuse_without_effect
from tests.docs.console import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
CODE_LINE = re.compile(r"^(?: {4}|- run: )?\$? ?(divtrace [^\n`]*)", re.MULTILINE)
CODE_SPAN = re.compile(r"`(divtrace \w+ [^`]*)`")
SEPARATORS = {"||", "&&", ";", "|", "#", ">"}


def shown_lines(text: str) -> Iterator[list[str]]:
    """Argument lists of the command lines in code blocks, without `divtrace` itself."""
    for match in CODE_LINE.finditer(text.replace("\\\n", " ")):
        arguments: list[str] = []
        for word in [*shlex.split(match.group(1).replace(";", " ;"), comments=True), "#"]:
            if word in SEPARATORS:
                if arguments[:1] == ["divtrace"]:
                    yield arguments[1:]
                arguments = []
            else:
                arguments.append(word)


def check_arguments(arguments: list[str]) -> None:
    """Parse as the program would, without running it; settings of arms are checked too."""
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None, arguments
    context = command.make_context(arguments[0], arguments[1:])
    for arm in context.params.get("arms") or ():
        refuse_without_effect(parse_settings(dict(_parsed(arm)[1]), " ".join(arguments)), "a page")


def _parsed(arm: object) -> tuple[str, dict[str, object]]:
    return parse_arm(arm) if isinstance(arm, str) else arm  # type: ignore[return-value]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_command_lines_on_a_page_are_accepted(page: Path) -> None:
    for arguments in shown_lines(page.read_text(encoding="utf-8")):
        if len(arguments) > 0 and arguments[0] in COMMANDS:
            check_arguments(arguments)
        else:
            assert arguments[:1] in ([], ["COMMAND"]), f"{page}: no such command: {arguments}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_that_the_text_names_exist(page: Path) -> None:
    for match in CODE_SPAN.finditer(page.read_text(encoding="utf-8")):
        name, *rest = match.group(1).split()[1:]
        if name not in COMMANDS:
            assert name == "COMMAND", match.group(0)
            continue
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts} | {"--help"}
        assert {word.rstrip(",.") for word in rest if word.startswith("--")} <= known, match.group(0)


def test_the_symptoms_page_shows_commands_and_wrong_ones_are_noticed() -> None:
    lines = list(shown_lines((ROOT / "docs" / "symptoms.md").read_text(encoding="utf-8")))
    assert len(lines) > 15
    for wrong in (["diff", "a", "b", "--no-such"], ["record", "x.yaml", "-o", "y", "--arm", "a:no_such=1"]):
        with pytest.raises(Exception, match="no"):
            check_arguments(wrong)
