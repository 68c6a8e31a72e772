"""`divtrace report`: one self-contained HTML file about a run, or about two and why they differ."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from divtrace.commands.arguments import TRACE, TRACE_OR_BUNDLE, complete_request
from divtrace.commands.options import refuse_unwritable, status_line


@click.command("report")
@click.argument("a", type=TRACE_OR_BUNDLE)
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

    A alone may be a bundle, which holds two traces.

    \b
    Examples:
      divtrace report runs/serial.h5 runs/batched.h5 -o report.html
      divtrace report runs/serial.h5 runs/batched.h5 --no-proof
      divtrace report runs/serial.h5 -o run.html
      divtrace report case.zip
    """
    from divtrace.api.blame import blame
    from divtrace.api.sources import opened_runs
    from divtrace.report.write import write_report

    refuse_unwritable(output)
    files = [str(path) for path in (a, b) if path is not None]
    commands = [f"divtrace report {shlex.join(files)} -o {shlex.quote(str(output))}"]
    with opened_runs(a, b) as runs:
        if len(runs) == 1:
            write_report(output, *runs, commands=commands)
        else:
            with status_line("comparing") as progress:
                result = blame(*runs, request=request, proof=not no_proof, model=model, progress=progress)
            commands = [f"divtrace diff {shlex.join(files)}", f"divtrace blame {shlex.join(files)}", *commands]
            write_report(output, *runs, result, commands)
    click.echo(f"{output}: {output.stat().st_size / 1000:.0f} kB")
