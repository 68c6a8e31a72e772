"""`divtrace.blame`: the earlier batch that caused a divergence, with proof."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

from divtrace.api.arguments import whole_number
from divtrace.api.sources import Progress, Source, foreseen_errors, opened, opened_pair
from divtrace.errors import DivtraceError
from divtrace.proof.limits import MOST_JOINT_TRIALS, MOST_POSITIONS
from divtrace.replay.models import load_model_of
from divtrace.verdict.blame import ProofOptions
from divtrace.verdict.blame import blame as blame_traces
from divtrace.verdict.records import BlameResult


@foreseen_errors()
def blame(
    a: Source,
    b: Source | None = None,
    *,
    request: str | None = None,
    position: int | None = None,
    proof: bool = True,
    model: str | None = None,
    work: str | os.PathLike[str] | None = None,
    again: Source | None = None,
    check_recording: bool = False,
    reference: bool = False,
    past_flip: int = 0,
    joint_trials: int = MOST_JOINT_TRIALS,
    progress: Progress | None = None,
) -> BlameResult:
    """Say why run `b` differs from run `a`: the first cause, not the step at which the text splits.

    Args:
        a: the reference run: a path, URL, file object or open trace; or a bundle, which holds both runs.
        b: the other run.
        request: id of the request to explain; by default the one that split first.
        position: the decision to explain, as a token position of the request; by default the split.
        proof: play both runs back with only the suspects changed; False (`--no-proof`) leaves a suspicion.
        model: the model of the traces, when it is not found where it was: a path, a hub id or `smollm2`.
        work: folder that keeps the results of re-runs, to go on after an interruption.
        again: a second recording of run `a`: does it repeat itself?
        check_recording: also run `a` without a recorder: does recording change the run?
        reference: compute the deciding logits in float64: which run is right?
        past_flip: positions behind the decision at which to measure how the difference goes on.
        joint_trials: re-runs that may be spent on making a joint set of causes smaller.
        progress: called with a few words about what is being done.

    Returns:
        What `divtrace blame --json` prints, as records; `result.plot()` draws both runs, origin and flip.

    Raises:
        DivtraceError: an argument makes no sense, or there is no such request or position.
        EvidenceError: the traces do not hold what the question needs. TraceError: a trace cannot be read.
    """
    if not proof and (check_recording or reference or past_flip):
        raise DivtraceError("--check-recording, --reference and --past-flip run the model; leave --no-proof out.")
    whole_number("past_flip", past_flip, 0, MOST_POSITIONS)
    whole_number("joint_trials", joint_trials, 0)
    if position is not None:
        whole_number("position", position, 0)
    with ExitStack() as stack:
        trace_a, trace_b = stack.enter_context(opened_pair(a, b))
        trace_again = None if again is None else stack.enter_context(opened(again))
        options = ProofOptions(
            loaded=lambda: load_model_of(trace_a, model),
            scratch=None if work is None else Path(work),
            progress=progress or (lambda _: None),
            check_recording=check_recording,
            reference=reference,
            past_flip=past_flip,
            joint_trials=joint_trials,
        )
        return blame_traces(trace_a, trace_b, request, position, options if proof else None, trace_again)
