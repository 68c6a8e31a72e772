"""`divtrace probe`: at which row counts this machine's kernels change their mind."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from divtrace.commands.options import print_json, status_line, stdout_console, whole_numbers


@click.command("probe")
@click.option("--model", default=None, help="Probe the linears of this model: a path, a hub id or 'smollm2'.")
@click.option(
    "--shape", "shapes", multiple=True, metavar="KxN[:BITS]",
    help="Probe random weights of this shape: 4 bits unless told, 0 for dense float32.",
)  # fmt: skip
@click.option("--rows", default=None, metavar="1,2,8", help="Row counts; by default 1 to 40 and some larger ones.")
@click.option("--operation", "operations", multiple=True, help="Only operations that start with this word.")
@click.option(
    "--budget",
    type=click.FloatRange(min=0.1),
    default=None,
    help="Seconds to spend, loading left out; by default what lets the command end within a minute. What a GPU needs to"
    " compile its kernels comes on top.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of random weights and rows.")
@click.option("--html", type=click.Path(path_type=Path), default=None, help="Write the heat map here.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def command(
    model: str | None,
    shapes: tuple[str, ...],
    rows: str | None,
    operations: tuple[str, ...],
    budget: float | None,
    seed: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Find the row counts at which a row's bits leave its single-row result, and what else they depend on.

    \b
    Examples:
      divtrace probe
      divtrace probe --model smollm2 --budget 240 --html probe.html
      divtrace probe --shape 3584x3584:4 --rows 1,2,4,8,16
      divtrace probe --operation attention --json > attention.json
    """
    from divtrace.api.probe import probe
    from divtrace.probing.document import render_html
    from divtrace.probing.table import render_table

    with status_line("probing") as progress:
        result = probe(
            model=model,
            shapes=shapes,
            rows=whole_numbers(rows, "--rows") if rows is not None else None,
            operations=operations,
            budget=budget,
            seed=seed,
            progress=lambda case, done, total: progress(f"{done + 1} of {total}: {case}"),
            on_long_call=_announce,
        )
    if html is not None:
        html.write_text(render_html(result), encoding="utf-8")
    if as_json:
        print_json(result.to_json())
    else:
        stdout_console().print(render_table(result))


def _announce(case: str) -> None:
    # Not by click, which writes past rich: the line belongs above the status, not into it.
    sys.stderr.write(f"divtrace: compiling a kernel for {case}; its first call takes long.\n")
