"""`divtrace tune`: measure which path is fastest here, per site shape and row count."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table

from divtrace.commands.options import status_line, stdout_console, whole_numbers

if TYPE_CHECKING:
    from engine.tune.records import TuneResult


@click.command("tune")
@click.option("--model", default="smollm2", show_default=True, help="A path, a hub id or 'smollm2'.")
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="The policy file to write.")
@click.option("--dtype", default="float32", show_default=True)
@click.option("--rows", default=None, metavar="1,2,8", help="Row counts to measure; by default ten, from 1 to 128.")
def command(model: str, output: Path, dtype: str, rows: str | None) -> None:
    """Measure every linear path per site shape and row count, and write what is fastest to a policy file.

    \b
    Examples:
      divtrace tune -o tuned.json
      divtrace tune --model smollm2 --rows 1,2,4,8,16 -o tuned.json
      divtrace record case.yaml -o runs --policy-file tuned.json
    """
    from divtrace.recording import load_shared, resolve_model
    from engine.tune.measure import ROW_COUNTS, tune
    from engine.tune.policy_file import write_policy

    counts = list(ROW_COUNTS) if rows is None else whole_numbers(rows, "--rows")
    loaded = load_shared(resolve_model(model), dtype)
    with status_line("measuring") as progress:
        result = tune(loaded, counts, on_shape=lambda timed: progress(f"measured {timed.shape}"))
    write_policy(result, output)
    stdout_console().print(_table(result))
    click.echo(f"{output}: paths of {len(result.policy.shapes)} site shapes.")


def _table(result: TuneResult) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("site shape", "sites", "fastest path by rows"):
        table.add_column(title)
    sites = {timed.shape: timed.sites for timed in result.timings}
    for shape, ranges in result.policy.shapes.items():
        words = ", ".join(f"up to {r.max_rows}: {r.path}" if r.max_rows else f"above: {r.path}" for r in ranges)
        table.add_row(shape, str(sites[shape]), words)
    return table
