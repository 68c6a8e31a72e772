"""`divtrace replay`: play a trace back and hold it against what was recorded."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from divtrace.commands.arguments import TRACE
from divtrace.commands.options import print_json, step_progress


@click.command("replay")
@click.argument("trace", type=TRACE)
@click.option("--model", default=None, help="The model of the trace, when it is not found where it was.")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=None, help="Keep the replay's trace here.")
@click.option("--last-step", type=click.IntRange(0), default=None, help="Stop after this step.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def command(trace: Path | str, model: str | None, output: Path | None, last_step: int | None, as_json: bool) -> int:
    """Play TRACE back with its own schedule, paths and tokens; exit 0 when every bit is the same, 1 when not.

    \b
    Examples:
      divtrace replay runs/batched.h5
      divtrace replay runs/batched.h5 -o again.h5 --last-step 40
      divtrace replay runs/batched.h5 --model models/tiny.gguf --json
    """
    from divtrace.replay.models import load_model_of
    from divtrace.replay.replay import Replayer
    from divtrace.replay.verify import compare_replay
    from divtrace.trace.reader import open_trace

    with open_trace(trace) as original, tempfile.TemporaryDirectory() as scratch:
        target = output or Path(scratch) / "replay.h5"
        replayer = Replayer(original, load_model_of(original, model))
        with step_progress("replay") as advance:
            replayer.play(target, last_step=last_step, on_step=advance)
        with open_trace(target) as replayed:
            result = compare_replay(original, replayed)
    if as_json:
        print_json({"schema": "divtrace.replay/1", "equal": result.is_equal, **asdict(result)})
    elif result.is_equal:
        click.echo(
            f"{trace}: {result.steps} steps replayed, bit for bit equal: {', '.join(result.compared)} "
            f"({result.rows} rows, {result.decisions} decisions)."
        )
    else:
        click.echo(f"{trace}: the replay differs from step {result.first_step} on, first in {result.what}.")
    return 0 if result.is_equal else 1
