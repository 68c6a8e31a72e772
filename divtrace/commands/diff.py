"""`divtrace diff`: the first divergent token of two traces."""

from __future__ import annotations

from pathlib import Path

import click

from divtrace.commands.arguments import TRACE, TRACE_OR_BUNDLE, complete_request
from divtrace.commands.options import print_json, stdout_console
from divtrace.errors import DivtraceError


@click.command("diff")
@click.argument("a", type=TRACE_OR_BUNDLE)
@click.argument("b", type=TRACE, required=False)
@click.option("--request", default=None, shell_complete=complete_request, help="Compare this request only.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON (schema divtrace.diff/1).")
def command(a: Path | str, b: Path | str | None, request: str | None, as_json: bool) -> int:
    """Find the first token at which traces A and B differ, and what differs before it.

    A alone may be a bundle, which holds two traces.

    Exit code 0: no difference seen. 1: tokens or state differ. 2: could not tell.

    \b
    Examples:
      divtrace diff runs/serial.h5 runs/batched.h5
      divtrace diff runs/serial.h5 runs/batched.h5 --request anchor
      divtrace diff base.h5 head.h5 --json > diff.json
      divtrace diff base.h5 head.h5 || divtrace blame base.h5 head.h5
    """
    from divtrace.api.diff import diff
    from divtrace.divergence.records import Outcome
    from divtrace.render.diff import diff_sentence, render_diff
    from divtrace.render.document import diff_document

    result = diff(a, b, request=request)
    if result.outcome is Outcome.INPUTS and not as_json:
        raise DivtraceError(diff_sentence(result))
    if as_json:
        print_json(diff_document(result))
    else:
        stdout_console().print(render_diff(result))
    return result.exit_status
