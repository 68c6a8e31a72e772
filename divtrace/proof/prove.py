"""Decides what to try, and what the trials show. The argument of `divtrace blame` stands here."""

from __future__ import annotations

from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.minimize import Indices, minimize
from divtrace.proof.records import Causality, Direction, ProofResult, ReplayControl


def prove(counterfactuals: Counterfactuals) -> ProofResult:
    """Controls first, then trials over the candidates.

    A control that fails ends the proof: if a run does not repeat itself there is nothing to blame yet.
    """
    controls: list[ReplayControl] = []
    for run in ("A", "B"):
        controls.append(counterfactuals.control(run))
        if not controls[-1].is_equal:
            note = f"run {run} does not reproduce on this machine, so no counterfactual can be trusted"
            return _result(counterfactuals, controls, Causality.UNTESTED, (), (), note)
    everything = tuple(range(len(counterfactuals.candidates)))
    if not everything:
        return _result(counterfactuals, controls, Causality.UNTESTED, (), (), "no site took another path")
    necessary = _smallest(counterfactuals, Direction.RESTORE, everything)
    if not necessary:
        # Restoring nothing: each of several may suffice, or the candidates are decoys.
        sufficient = _sufficient_alone(counterfactuals, everything)
        causality = Causality.EITHER if sufficient else Causality.NONE
        note = "" if sufficient else "the candidates' paths differ, and changing them does not change the token"
        return _result(counterfactuals, controls, causality, (), sufficient, note)
    if len(necessary) == 1 and counterfactuals.trial(Direction.INDUCE, necessary).flips:
        return _result(counterfactuals, controls, Causality.ONE, necessary, (necessary,), "")
    alone = _sufficient_alone(counterfactuals, necessary) if len(necessary) > 1 else ()
    if alone:
        return _result(counterfactuals, controls, Causality.EITHER, necessary, alone, "")
    together = _smallest(counterfactuals, Direction.INDUCE, everything)
    causality = Causality.JOINT if len(together) > 1 else Causality.NECESSARY
    return _result(counterfactuals, controls, causality, necessary, (together,) if together else (), "")


def _smallest(counterfactuals: Counterfactuals, direction: Direction, everything: Indices) -> Indices:
    """The smallest set that flips the decision; empty when even all candidates together do not."""

    def flips(chosen: Indices) -> bool:
        return counterfactuals.trial(direction, chosen).flips

    origins = tuple(i for i in everything if counterfactuals.candidates[i].is_origin)
    # The walk's own suspicion first: one trial settles the usual case.
    for index in origins[:1]:
        if flips((index,)):
            return (index,)
    for suspects in (origins, everything):
        if len(suspects) > 0 and flips(suspects):
            return minimize(suspects, flips)
    return ()


def _sufficient_alone(counterfactuals: Counterfactuals, among: Indices) -> tuple[Indices, ...]:
    """Candidates that bring the other token by themselves; only origins are tried where there are many."""
    tried = [i for i in among if counterfactuals.candidates[i].is_origin or len(among) <= 4]
    return tuple((i,) for i in tried if counterfactuals.trial(Direction.INDUCE, (i,)).flips)


def _result(
    counterfactuals: Counterfactuals,
    controls: list[ReplayControl],
    causality: Causality,
    cause: Indices,
    sufficient: tuple[Indices, ...],
    note: str,
) -> ProofResult:
    return ProofResult(
        controls=tuple(controls),
        trials=counterfactuals.trials,
        causality=causality,
        cause=cause,
        sufficient=sufficient,
        reruns=counterfactuals.reruns + len(controls),
        note=note,
    )
