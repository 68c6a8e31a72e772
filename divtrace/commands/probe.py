"""`divtrace probe`: at which row counts this machine's kernels change their mind."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from divtrace.commands.options import stdout_console
from divtrace.probing.document import render_html
from divtrace.probing.request import DEFAULT_ROW_COUNTS, SMALL_SHAPES, LinearShape, ProbeRequest
from divtrace.probing.run import run_probe
from divtrace.probing.table import render_table
from divtrace.recording import load_shared, resolve_model


@click.command("probe")
@click.option("--model", default=None, help="Probe the linears of this model: a path, a hub id or 'smollm2'.")
@click.option("--shape", "shapes", multiple=True, metavar="KxN[:BITS]", help="Probe random weights of this shape.")
@click.option("--rows", default=None, metavar="1,2,8", help="Row counts; by default 1 to 40 and some larger ones.")
@click.option("--operation", "operations", multiple=True, help="Only operations that start with this word.")
@click.option("--budget", type=click.FloatRange(min=0.1), default=60.0, show_default=True, help="Seconds to spend.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--html", type=click.Path(path_type=Path), default=None, help="Write the heat map here.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def command(
    model: str | None,
    shapes: tuple[str, ...],
    rows: str | None,
    operations: tuple[str, ...],
    budget: float,
    seed: int,
    html: Path | None,
    as_json: bool,
) -> None:
    """Find the row counts at which a row's bits leave its single-row result, and what else they depend on.

    \b
    divtrace probe
    divtrace probe --model smollm2 --budget 60 --html probe.html
    divtrace probe --shape 3584x3584:4 --rows 1,2,4,8,16
    """
    loaded = load_shared(resolve_model(model), "float32") if model is not None else None
    given = tuple(_parse_shape(shape) for shape in shapes)
    request = ProbeRequest(
        model=loaded,
        shapes=given or (() if loaded is not None else SMALL_SHAPES),
        row_counts=_parse_rows(rows),
        operations=operations,
        budget_s=budget,
        seed=seed,
    )
    with Status("probing", console=Console(stderr=True)) as status:
        result = run_probe(request, lambda case, done, total: status.update(f"{done + 1} of {total}: {case}"))
    if html is not None:
        html.write_text(render_html(result), encoding="utf-8")
    if as_json:
        document = result.to_json()
        click.echo(document if isinstance(document, str) else json.dumps(document, indent=2))
    else:
        stdout_console().print(render_table(result))


def _parse_rows(text: str | None) -> tuple[int, ...]:
    if text is None:
        return DEFAULT_ROW_COUNTS
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of whole numbers; write --rows 1,2,8.") from None


def _parse_shape(text: str) -> LinearShape:
    size, _, bits = text.partition(":")
    try:
        inputs, outputs = (int(part) for part in size.split("x"))
        return LinearShape(inputs, outputs, int(bits) if bits else 4)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not KxN or KxN:BITS; write --shape 576x1536:4.") from None
