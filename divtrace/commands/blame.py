"""`divtrace blame`: the earlier batch that caused a divergence, with proof."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from divtrace.commands.arguments import TRACE, TRACE_OR_BUNDLE, complete_request
from divtrace.commands.options import print_json, status_line, stdout_console
from divtrace.errors import DivtraceError
from divtrace.proof.limits import MOST_JOINT_TRIALS, MOST_POSITIONS

if TYPE_CHECKING:
    from divtrace.verdict.records import BlameResult


@click.command("blame")
@click.argument("a", type=TRACE_OR_BUNDLE)
@click.argument("b", type=TRACE, required=False)
@click.option(
    "--request", default=None, shell_complete=complete_request,
    help="The request to explain; by default the one that split first.",
)  # fmt: skip
@click.option("--position", type=click.IntRange(0), default=None, help="The decision to explain; by default the split.")
@click.option("--no-proof", is_flag=True, help="Do not re-run anything; the answer is then a suspicion.")
@click.option("--model", default=None, help="The model of the traces, when it is not found where it was.")
@click.option(
    "--work", type=click.Path(path_type=Path), default=None, help="Keep results of re-runs here, to go on after Ctrl-C."
)
@click.option("--again", type=TRACE, default=None, help="A second recording of run A: does A repeat itself?")
@click.option("--check-recording", is_flag=True, help="Also run A without a recorder: does recording change the run?")
@click.option("--reference", is_flag=True, help="Compute the deciding logits in float64: which run is right?")
@click.option(
    "--past-flip", type=click.IntRange(0, MOST_POSITIONS), default=0, metavar="N",
    help="Measure how the difference goes on at N positions behind the decision.",
)  # fmt: skip
@click.option(
    "--joint-trials", type=click.IntRange(0), default=MOST_JOINT_TRIALS, show_default=True, metavar="N",
    help="Re-runs that may be spent on making a joint set of causes smaller.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="Print the argument step by step, with the evidence for each.")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON (schema divtrace.blame/1).")
def command(
    a: Path | str,
    b: Path | str | None,
    request: str | None,
    position: int | None,
    no_proof: bool,
    model: str | None,
    work: Path | None,
    again: Path | str | None,
    check_recording: bool,
    reference: bool,
    past_flip: int,
    joint_trials: int,
    explain: bool,
    as_json: bool,
) -> int:
    """Say why run B differs from run A: the first cause, not the step at which the text splits.

    A is the reference. Both runs are played back with only the suspected kernel choices changed; a suspect is a cause
    only when that changes the outcome. A alone may be a bundle, which holds two traces.

    Exit code 0: no divergence. 1: divergence, with a verdict. 2: not decidable, and what is missing.

    \b
    Examples:
      divtrace blame runs/serial.h5 runs/batched.h5
      divtrace blame runs/serial.h5 runs/batched.h5 --explain --reference
      divtrace blame runs/serial.h5 runs/batched.h5 --request anchor --work proof
      divtrace blame runs/serial.h5 runs/batched.h5 --no-proof --json
      divtrace blame case.zip
    """
    from divtrace.api.blame import blame

    with status_line("comparing") as progress:
        result = blame(
            a,
            b,
            request=request,
            position=position,
            proof=not no_proof,
            model=model,
            work=work,
            again=again,
            check_recording=check_recording,
            reference=reference,
            past_flip=past_flip,
            joint_trials=joint_trials,
            progress=progress,
        )
    _print(result, explain, as_json)
    return result.exit_status


def _print(result: BlameResult, explain: bool, as_json: bool) -> None:
    from divtrace.render.blame_document import blame_document
    from divtrace.render.explain import render_explanation
    from divtrace.render.verdict import render_verdict, verdict_sentence
    from divtrace.verdict.records import Verdict

    if as_json:
        print_json(blame_document(result))
    elif result.verdict is Verdict.INPUTS_DIFFER and not explain:
        raise DivtraceError(verdict_sentence(result))
    else:
        stdout_console().print(render_explanation(result) if explain else render_verdict(result))
