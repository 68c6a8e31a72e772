"""`divtrace show`: look into one trace."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from divtrace.commands.arguments import TRACE
from divtrace.commands.options import print_json, stdout_console
from divtrace.errors import DivtraceError

if TYPE_CHECKING:
    from divtrace.trace.reader import Trace

SHOWN_REQUESTS = 40
FOLLOW_SECONDS = 1.0


@click.command("show")
@click.argument("trace", type=TRACE)
@click.option("--step", type=click.IntRange(0), default=None, help="One step: its batch, paths and decisions.")
@click.option("--requests", "only_requests", is_flag=True, help="Requests only, all of them.")
@click.option("--steps", "only_steps", is_flag=True, help="Steps only, all of them.")
@click.option("--follow", is_flag=True, help="Keep reading a run that is still going on, up to its end or Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def command(
    trace: Path | str, step: int | None, only_requests: bool, only_steps: bool, follow: bool, as_json: bool
) -> None:
    """Show a run: its settings, requests, timeline and steps.

    \b
    Examples:
      divtrace show runs/batched.h5
      divtrace show runs/batched.h5 --step 1
      divtrace show runs/batched.h5 --steps
      divtrace show runs/batched.h5 --follow
      divtrace show runs/batched.h5 --requests --json
    """
    from divtrace.trace.reader import open_trace

    _refuse_together(
        {"--step": step is not None, "--requests": only_requests, "--steps": only_steps, "--follow": follow}
    )
    if follow and as_json:
        raise DivtraceError("--follow prints steps as they come, and a JSON document has an end; give one of them.")
    with open_trace(trace) as opened:
        if follow:
            _follow(opened)
        elif as_json:
            print_json(_document(opened, step, only_requests, only_steps))
        else:
            _print(opened, step, only_requests, only_steps)


def _refuse_together(views: dict[str, bool]) -> None:
    chosen = [name for name, is_chosen in views.items() if is_chosen]
    if len(chosen) > 1:
        raise DivtraceError(f"{' and '.join(chosen)} are different views of a trace; give one of them.")


def _print(trace: Trace, step: int | None, only_requests: bool, only_steps: bool) -> None:
    from divtrace.show import show_requests, show_run, show_step, show_steps, show_timeline

    console = stdout_console()
    if step is not None:
        console.print(show_step(trace, step))
    elif only_requests:
        console.print(show_requests(trace))
    elif only_steps:
        console.print(show_steps(trace))
    else:
        console.print(show_run(trace))
        console.print("")
        console.print(show_timeline(trace, console.width, SHOWN_REQUESTS))


def _document(trace: Trace, step: int | None, only_requests: bool, only_steps: bool) -> dict[str, object]:
    from divtrace.show import requests_json, run_json, step_json, steps_json, timeline_json

    if step is not None:
        return step_json(trace, step)
    if only_requests:
        return requests_json(trace)
    if only_steps:
        return steps_json(trace)
    return {
        "schema": "divtrace.show/1",
        "run": run_json(trace),
        "requests": requests_json(trace),
        "timeline": timeline_json(trace),
        "steps": steps_json(trace),
    }


def _follow(trace: Trace) -> None:
    """Print groups of steps as they are flushed, until the run ends or dies (or the reader presses Ctrl-C)."""
    from divtrace.recorder.targets import has_writer
    from divtrace.show import show_run, show_steps

    console = stdout_console()
    console.print(show_run(trace, with_steps=False))
    console.print("")
    shown = 0
    while True:
        # Asked before the look at the file: a run that ends in between is seen as ended, not as dead.
        is_going_on = has_writer(Path(trace.path))
        trace.refresh()
        if trace.step_count > shown:
            console.print(show_steps(trace, first=shown, continues=shown > 0))
            shown = trace.step_count
        if trace.clean_end or not is_going_on:
            console.print(trace.ending(), markup=False)
            return
        time.sleep(FOLLOW_SECONDS)
