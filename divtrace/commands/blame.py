"""`divtrace blame`: the earlier batch that caused a divergence, with proof."""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from divtrace.blame.blame import ProofOptions, blame
from divtrace.blame.records import BlameResult
from divtrace.commands.options import print_json, stdout_console
from divtrace.render.blame_document import blame_document
from divtrace.render.verdict import render_verdict
from divtrace.replay.models import load_model_of
from divtrace.trace.reader import open_trace


@click.command("blame")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--request", default=None, help="The request to explain; by default the one that split first.")
@click.option("--position", type=click.IntRange(0), default=None, help="The decision to explain; by default the split.")
@click.option("--no-proof", is_flag=True, help="Do not re-run anything; the answer is then a suspicion.")
@click.option("--model", default=None, help="The model of the traces, when it is not found where it was.")
@click.option(
    "--work", type=click.Path(path_type=Path), default=None, help="Keep results of re-runs here, to go on after Ctrl-C."
)
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON (schema divtrace.blame/1).")
def command(
    a: Path,
    b: Path,
    request: str | None,
    position: int | None,
    no_proof: bool,
    model: str | None,
    work: Path | None,
    as_json: bool,
) -> int:
    """Say why run B differs from run A: the first cause, not the step at which the text splits.

    A is the reference. Both runs are played back with only the suspected kernel choices changed; a suspect is a cause
    only when that changes the outcome.

    Exit code 0: no divergence. 1: divergence, with a verdict. 2: not decidable, and what is missing.

    \b
    divtrace blame runs/serial.h5 runs/batched.h5
    divtrace blame runs/serial.h5 runs/batched.h5 --request follower --work proof
    divtrace blame runs/serial.h5 runs/batched.h5 --no-proof --json
    """
    result = _blame(a, b, request, position, None if no_proof else (model, work))
    if as_json:
        print_json(blame_document(result))
    else:
        stdout_console().print(render_verdict(result))
    return result.exit_status


def _blame(
    a: Path, b: Path, request: str | None, position: int | None, proof: tuple[str | None, Path | None] | None
) -> BlameResult:
    errors = Console(stderr=True)
    with open_trace(a) as trace_a, open_trace(b) as trace_b:
        if proof is None:
            return blame(trace_a, trace_b, request, position)
        model, work = proof
        with Status("comparing", console=errors) as status:
            options = ProofOptions(lambda: load_model_of(trace_a, model), work, status.update)
            return blame(trace_a, trace_b, request, position, options)
