"""`divtrace export`: a trace in another tool's format."""

from __future__ import annotations

from pathlib import Path

import click

from divtrace.commands.arguments import TRACE


@click.command("export")
@click.argument("a", type=TRACE)
@click.argument("b", type=TRACE, required=False)
@click.option("--perfetto", "output", type=click.Path(path_type=Path), required=True, help="Trace-event JSON to write.")
def command(a: Path | str, b: Path | str | None, output: Path) -> None:
    """Write the timeline of A (and B) as trace-event JSON, for Perfetto and chrome://tracing.

    \b
    Examples:
      divtrace export runs/batched.h5 --perfetto batched.json
      divtrace export runs/serial.h5 runs/batched.h5 --perfetto both.json
    """
    from divtrace.export.perfetto import write_perfetto
    from divtrace.trace.reader import open_trace

    with open_trace(a) as trace_a:
        if b is None:
            write_perfetto(output, trace_a)
        else:
            with open_trace(b) as trace_b:
                write_perfetto(output, trace_a, trace_b)
    click.echo(f"{output}: open it at ui.perfetto.dev or in chrome://tracing")
