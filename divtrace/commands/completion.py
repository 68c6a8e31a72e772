"""`divtrace completion`: the script with which a shell completes this command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from divtrace.errors import DivtraceError

VARIABLE = "_DIVTRACE_COMPLETE"
INSTALL = {
    "bash": "divtrace completion bash > ~/.divtrace.bash && echo '. ~/.divtrace.bash' >> ~/.bashrc",
    "zsh": "divtrace completion zsh > ~/.divtrace.zsh && echo '. ~/.divtrace.zsh' >> ~/.zshrc",
    "fish": "divtrace completion fish > ~/.config/fish/completions/divtrace.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(INSTALL)))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of SHELL on standard output, and how to install it on standard error.

    Commands, options and paths of traces are completed; ids after --request; in zsh and fish also arms, settings and
    policies after --arm (bash cuts words at ':' and '=').

    \b
    Examples:
      divtrace completion bash > ~/.divtrace.bash && . ~/.divtrace.bash
      divtrace completion zsh > ~/.divtrace.zsh && . ~/.divtrace.zsh
      divtrace completion fish > ~/.config/fish/completions/divtrace.fish
    """
    completer = get_completion_class(shell)
    if completer is None:
        raise DivtraceError(f"this version of click writes no completion for {shell}; update click.")
    click.echo(completer(context.find_root().command, {}, "divtrace", VARIABLE).source())
    click.echo(f"To install: {INSTALL[shell]}", err=True)
