"""Puts the help of every command into the command reference, as the commands print it. A hook of MkDocs."""

from __future__ import annotations

from typing import Any

import click

from divtrace.commands.main import cli

PLACE = "<!-- every command's help -->"
WIDTH = 80


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace the place holder, on the page that has it."""
    return markdown.replace(PLACE, command_reference()) if PLACE in markdown else markdown


def command_reference() -> str:
    """One section for `divtrace` and one for each of its commands, in the order of a user's work."""
    root = click.Context(cli, info_name="divtrace", terminal_width=WIDTH, **cli.context_settings)
    parts = [_section(root)]
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if command is not None and not command.hidden:
            parts.append(_section(click.Context(command, root, info_name=name, terminal_width=WIDTH)))
    return "\n".join(parts)


def _section(context: click.Context) -> str:
    lines = (line.rstrip() for line in context.command.get_help(context).splitlines())
    return "\n".join([f"## {context.command_path}", "", "```text", *lines, "```", ""])
