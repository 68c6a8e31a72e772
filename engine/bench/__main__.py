"""`python -m engine.bench [NAME ...]`: runs benchmarks and prints their tables, as Markdown or JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping

import click

from engine.bench import (
    against_mlx_lm,
    exercise,
    gemv_gemm,
    handoff,
    invariant_cost,
    overhead,
    static_continuous,
    tuned_paths,
)
from engine.bench.context import BenchContext
from engine.bench.meter import Clock
from engine.bench.report import Report, Table, environment_line
from engine.errors import EngineError

BENCHMARKS: Mapping[str, Callable[[BenchContext], tuple[Table, ...]]] = {
    "gemv-gemm": gemv_gemm.run,
    "handoff": handoff.run,
    "static-continuous": static_continuous.run,
    "exercise": exercise.run,
    "mlx-lm": against_mlx_lm.run,
    "overhead": overhead.run,
    "tune": tuned_paths.run,
    "invariant": invariant_cost.run,
}
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}
MODEL_VARIABLE = "DIVTRACE_BENCH_MODEL"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHMARKS)))
@click.option("--model", default=lambda: os.environ.get(MODEL_VARIABLE), help="GGUF file, mlx-lm directory or hub id.")
@click.option("--rounds", type=click.IntRange(min=1), help="Runs of each arm, in turn. [default: 3, or 1 with --quick]")
@click.option("--quick", is_flag=True, help="The smallest sizes that still show the effect.")
@click.option(
    "--clock",
    "clock_name",
    type=click.Choice(list(CLOCKS)),
    default="wall",
    show_default=True,
    help="cpu: this process's processor time, for a machine that others use too; with one BLAS thread it is wall time.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per benchmark.")
def main(
    names: tuple[str, ...], model: str | None, rounds: int | None, quick: bool, clock_name: str, as_json: bool
) -> None:
    """Run the benchmarks NAMES (all by default). The model is --model, else $DIVTRACE_BENCH_MODEL."""
    context = BenchContext(model, rounds or (1 if quick else 3), quick, CLOCKS[clock_name])
    try:
        for name in names or tuple(BENCHMARKS):
            _print(_report(name, context, clock_name), as_json)
    except EngineError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)


def _report(name: str, context: BenchContext, clock_name: str) -> Report:
    flags = f"--rounds {context.rounds}" + (" --quick" if context.quick else "")
    command = f"python -m engine.bench {name} {flags}" + (" --clock cpu" if clock_name == "cpu" else "")
    return Report(name, command, BENCHMARKS[name](context), environment_line())


def _print(report: Report, as_json: bool) -> None:
    click.echo(json.dumps(report.as_json()) if as_json else report.markdown())


if __name__ == "__main__":
    main()
