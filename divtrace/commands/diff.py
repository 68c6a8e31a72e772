"""`divtrace diff`: the first divergent token of two traces."""

from __future__ import annotations

from pathlib import Path

import click

from divtrace.commands.options import print_json, stdout_console
from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import Outcome
from divtrace.errors import DivtraceError
from divtrace.render.diff import diff_sentence, render_diff
from divtrace.render.document import diff_document
from divtrace.trace.reader import open_trace


@click.command("diff")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--request", default=None, help="Compare this request only.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON (schema divtrace.diff/1).")
def command(a: Path, b: Path, request: str | None, as_json: bool) -> int:
    """Find the first token at which traces A and B differ, and what differs before it.

    Exit code 0: no difference seen. 1: tokens or state differ. 2: could not tell.

    \b
    divtrace diff runs/serial.h5 runs/batched.h5
    divtrace diff base.h5 head.h5 || divtrace blame base.h5 head.h5
    """
    with open_trace(a) as trace_a, open_trace(b) as trace_b:
        result = diff_traces(trace_a, trace_b, request)
    if result.outcome is Outcome.INPUTS and not as_json:
        raise DivtraceError(diff_sentence(result))
    if as_json:
        print_json(diff_document(result))
    else:
        stdout_console().print(render_diff(result))
    return result.exit_status
