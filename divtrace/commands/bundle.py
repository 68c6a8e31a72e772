"""`divtrace bundle`: what another person needs to run blame again."""

from __future__ import annotations

from pathlib import Path

import click

from divtrace.commands.arguments import TRACE, complete_request
from divtrace.commands.options import refuse_unwritable


@click.command("bundle")
@click.argument("a", type=TRACE)
@click.argument("b", type=TRACE)
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The zip file to write.")
@click.option(
    "--request", "requests", multiple=True, shell_complete=complete_request,
    help="Cut the traces to the steps of this request.",
)  # fmt: skip
def command(a: Path | str, b: Path | str, output: Path, requests: tuple[str, ...]) -> None:
    """Pack two traces (workload, settings and versions inside; never weights) for somebody else.

    \b
    Examples:
      divtrace bundle runs/serial.h5 runs/batched.h5 -o case.zip
      divtrace bundle runs/serial.h5 runs/batched.h5 -o case.zip --request anchor
      divtrace blame case.zip
    """
    from divtrace.trace.bundle import write_bundle
    from divtrace.trace.reader import open_trace

    refuse_unwritable(output)
    with open_trace(a) as trace_a, open_trace(b) as trace_b:
        written = write_bundle(trace_a, trace_b, output, requests)
    click.echo(f"{written}: {written.stat().st_size / 1000:.0f} kB; read it with: divtrace blame {written}")
