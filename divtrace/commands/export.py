"""`divtrace export`: a trace in another tool's format."""

from __future__ import annotations

from pathlib import Path

import click

from divtrace.commands.arguments import TRACE, TRACE_OR_BUNDLE
from divtrace.commands.options import refuse_unwritable


@click.command("export")
@click.argument("a", type=TRACE_OR_BUNDLE)
@click.argument("b", type=TRACE, required=False)
@click.option("--perfetto", "output", type=click.Path(path_type=Path), required=True, help="Trace-event JSON to write.")
def command(a: Path | str, b: Path | str | None, output: Path) -> None:
    """Write the timeline of A (and B) as trace-event JSON, for Perfetto and chrome://tracing.

    A alone may be a bundle, which holds two traces.

    \b
    Examples:
      divtrace export runs/batched.h5 --perfetto batched.json
      divtrace export runs/serial.h5 runs/batched.h5 --perfetto both.json
      divtrace export case.zip --perfetto both.json
    """
    from divtrace.api.sources import opened_runs
    from divtrace.export.perfetto import write_perfetto

    refuse_unwritable(output)
    with opened_runs(a, b) as runs:
        write_perfetto(output, *runs)
    click.echo(f"{output}: open it at ui.perfetto.dev or in chrome://tracing")
