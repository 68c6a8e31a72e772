"""`divtrace blame`: the earlier batch that caused a divergence, with proof."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.status import Status

from divtrace.commands.options import print_json, stdout_console
from divtrace.errors import DivtraceError
from divtrace.proof.past_flip import MOST_POSITIONS
from divtrace.proof.search import MOST_JOINT_TRIALS
from divtrace.render.blame_document import blame_document
from divtrace.render.explain import render_explanation
from divtrace.render.verdict import render_verdict, verdict_sentence
from divtrace.replay.models import load_model_of
from divtrace.trace.bundle import Bundle, is_bundle
from divtrace.trace.reader import Trace, open_trace
from divtrace.verdict.blame import ProofOptions, blame
from divtrace.verdict.records import BlameResult, Verdict


@dataclass(frozen=True, slots=True)
class _Asked:
    """What to re-run; nothing of it with --no-proof."""

    model: str | None
    work: Path | None
    check_recording: bool
    reference: bool
    past_flip: int
    joint_trials: int

    def options(self, trace: Trace, status: Status) -> ProofOptions:
        return ProofOptions(
            lambda: load_model_of(trace, self.model),
            self.work,
            status.update,
            self.check_recording,
            self.reference,
            self.past_flip,
            self.joint_trials,
        )


@click.command("blame")
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path), required=False)
@click.option("--request", default=None, help="The request to explain; by default the one that split first.")
@click.option("--position", type=click.IntRange(0), default=None, help="The decision to explain; by default the split.")
@click.option("--no-proof", is_flag=True, help="Do not re-run anything; the answer is then a suspicion.")
@click.option("--model", default=None, help="The model of the traces, when it is not found where it was.")
@click.option(
    "--work", type=click.Path(path_type=Path), default=None, help="Keep results of re-runs here, to go on after Ctrl-C."
)
@click.option(
    "--again", type=click.Path(path_type=Path), default=None,
    help="A second recording of run A: does A repeat itself?",
)  # fmt: skip
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
    a: Path,
    b: Path | None,
    request: str | None,
    position: int | None,
    no_proof: bool,
    model: str | None,
    work: Path | None,
    again: Path | None,
    check_recording: bool,
    reference: bool,
    past_flip: int,
    joint_trials: int,
    explain: bool,
    as_json: bool,
) -> int:
    """Say why run B differs from run A: the first cause, not the step at which the text splits.

    A is the reference. Both runs are played back with only the suspected kernel choices changed; a suspect is a cause
    only when that changes the outcome.

    Exit code 0: no divergence. 1: divergence, with a verdict. 2: not decidable, and what is missing.

    \b
    divtrace blame runs/serial.h5 runs/batched.h5
    divtrace blame runs/serial.h5 runs/batched.h5 --request follower --work proof
    divtrace blame runs/serial.h5 runs/batched.h5 --explain --reference --past-flip 32
    divtrace blame runs/serial.h5 runs/batched.h5 --no-proof --json
    divtrace blame case.zip
    """
    asked = None if no_proof else _Asked(model, work, check_recording, reference, past_flip, joint_trials)
    if no_proof and (check_recording or reference or past_flip):
        raise click.UsageError("--check-recording, --reference and --past-flip run the model; leave --no-proof out.")
    result = _blame(a, b, request, position, again, asked)
    if as_json:
        print_json(blame_document(result))
    elif result.verdict is Verdict.INPUTS_DIFFER and not explain:
        raise DivtraceError(verdict_sentence(result))
    else:
        stdout_console().print(render_explanation(result) if explain else render_verdict(result))
    return result.exit_status


def _blame(
    a: Path, b: Path | None, request: str | None, position: int | None, again: Path | None, asked: _Asked | None
) -> BlameResult:
    with ExitStack() as stack:
        trace_a, trace_b = _open_pair(stack, a, b)
        trace_again = None if again is None else stack.enter_context(open_trace(again))
        if asked is None:
            return blame(trace_a, trace_b, request, position, again=trace_again)
        status = stack.enter_context(Status("comparing", console=Console(stderr=True)))
        return blame(trace_a, trace_b, request, position, asked.options(trace_a, status), trace_again)


def _open_pair(stack: ExitStack, a: Path, b: Path | None) -> tuple[Trace, Trace]:
    """Two traces, or the two of a bundle."""
    if b is not None:
        return stack.enter_context(open_trace(a)), stack.enter_context(open_trace(b))
    if not a.is_file() or not is_bundle(a):
        raise click.UsageError(f"{a} is no bundle; give two traces, or a file that divtrace bundle wrote.")
    first, second = stack.enter_context(Bundle(a)).traces
    return first, second
