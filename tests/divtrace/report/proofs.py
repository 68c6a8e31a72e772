"""Blame results with proofs made by hand, from a pair whose suspicion is real."""

from __future__ import annotations

from dataclasses import replace

from divtrace.proof.records import (
    Causality,
    Direction,
    Method,
    NeutralTrial,
    ProofResult,
    ReplayControl,
    Subject,
    Trial,
)
from divtrace.verdict.records import BlameResult, Confidence, Nature


def proven(suspected: BlameResult) -> BlameResult:
    """The same result with re-runs that brought each run's token in the other."""
    assert suspected.origins is not None
    a, b = suspected.origins.token_a.id, suspected.origins.token_b.id
    trials = (
        Trial(Direction.RESTORE, Method.PATH, (0,), a, b, a, True, -0.25, 0.5, 4, 1.0),
        Trial(Direction.INDUCE, Method.PATH, (0,), b, a, b, True, -0.5, 0.25, 4, 1.0),
        Trial(Direction.RESTORE, Method.ROWS, (0,), a, b, a, None, None, None, 4, 1.0),
    )
    proof = ProofResult(
        subject=Subject.PATHS,
        candidates=suspected.origins.candidates,
        controls=tuple(ReplayControl(run, True, 4, None, "", 0.5, 1.0) for run in "AB"),
        trials=trials,
        neutral_trials=(NeutralTrial((0,), a, a, True, True, 4, 1.0),),
        causality=Causality.ONE,
        cause=(0,),
        sufficient=((0,),),
        swap_agrees=True,
        reruns=6,
    )
    return replace(suspected, proof=proof, nature=Nature.ROUNDING, confidence=Confidence.PROVEN)


def jointly_proven(suspected: BlameResult) -> BlameResult:
    """Origins in steps 1, 2 and 3: undoing step 1 restores A's token, steps 1 and 2 together bring B's, 3 is spare.

    The re-runs by paths bring tokens, and not the other run's exact logits; those by K/V rows bring both.
    """
    assert suspected.origins is not None
    (origin,) = suspected.origins.origins
    candidates = tuple(replace(suspected.origins.candidates[0], step_a=step, step_b=step) for step in (1, 2, 3))
    origins = replace(
        suspected.origins,
        origins=tuple(replace(origin, step_a=step, step_b=step) for step in (1, 2, 3)),
        candidates=candidates,
    )
    a, b = origins.token_a.id, origins.token_b.id
    trials = (
        Trial(Direction.RESTORE, Method.PATH, (0,), a, b, a, False, -0.25, 0.5, 4, 1.0),
        Trial(Direction.INDUCE, Method.PATH, (0,), a, a, b, False, 0.1, 0.25, 4, 1.0),
        Trial(Direction.INDUCE, Method.PATH, (0, 1), b, a, b, False, -0.125, 0.25, 4, 1.0),
        Trial(Direction.INDUCE, Method.ROWS, (0, 1), b, a, b, True, -0.5, 0.25, 4, 1.0),
    )
    proof = ProofResult(
        subject=Subject.PATHS,
        candidates=candidates,
        controls=(
            ReplayControl("A", True, 4, None, "", 0.25, 1.0),
            ReplayControl("B", True, 4, None, "", 0.5, 1.0),
        ),
        trials=trials,
        neutral_trials=(),
        causality=Causality.JOINT,
        cause=(0,),
        sufficient=((0, 1),),
        swap_agrees=True,
        reruns=6,
    )
    return replace(suspected, origins=origins, proof=proof, nature=Nature.ROUNDING, confidence=Confidence.PROVEN)
