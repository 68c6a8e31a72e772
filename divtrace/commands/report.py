"""`divtrace report`: one self-contained HTML file about a run, or about two and why they differ."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from divtrace.commands.arguments import TRACE, complete_request
from divtrace.commands.options import status_line


@click.command("report")
@click.argument("a", type=TRACE)
@click.argument("b", type=TRACE, required=False)
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("report.html"), show_default=True)
@click.option(
    "--request", default=None, shell_complete=complete_request,
    help="The request to explain; by default the one that split first.",
)  # fmt: skip
@click.option("--no-proof", is_flag=True, help="Do not re-run anything; the answer is then a suspicion.")
@click.option("--model", default=None, help="The model of the traces, when it is not found where it was.")
def command(
    a: Path | str, b: Path | str | None, output: Path, request: str | None, no_proof: bool, model: str | None
) -> None:
    """Write an HTML report of A, or of A against B with the verdict and its proof; it opens without network.

    \b
    Examples:
      divtrace report runs/serial.h5 runs/batched.h5 -o report.html
      divtrace report runs/serial.h5 runs/batched.h5 --no-proof
      divtrace report runs/serial.h5 -o run.html
    """
    from divtrace.api.blame import blame
    from divtrace.report.write import write_report
    from divtrace.trace.reader import open_trace

    files = [str(path) for path in (a, b) if path is not None]
    commands = [f"divtrace report {shlex.join(files)} -o {shlex.quote(str(output))}"]
    with open_trace(a) as trace_a:
        if b is None:
            write_report(output, trace_a, commands=commands)
        else:
            with open_trace(b) as trace_b, status_line("comparing") as progress:
                result = blame(trace_a, trace_b, request=request, proof=not no_proof, model=model, progress=progress)
                commands = [f"divtrace diff {shlex.join(files)}", f"divtrace blame {shlex.join(files)}", *commands]
                write_report(output, trace_a, trace_b, result, commands)
    click.echo(f"{output}: {output.stat().st_size / 1000:.0f} kB")
