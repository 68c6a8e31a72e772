"""Decides what to try, and what the trials show. The argument of `divtrace blame` stands here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from divtrace.origin.records import Candidate
from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.minimize import Indices, minimize
from divtrace.proof.records import Causality, Direction, Method, ProofResult, ReplayControl, Subject, Trial

ASKED_ONE_BY_ONE = 4
"""With more candidates than this only origins are tried alone: ddmin finds sets, this finds alternatives."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What trials of one subject showed, before they are put beside controls."""

    causality: Causality
    cause: Indices = ()
    sufficient: tuple[Indices, ...] = ()
    swap_agrees: bool | None = None
    note: str = ""


def check_replays(counterfactuals: Counterfactuals) -> tuple[ReplayControl, ...]:
    """A against A, then B against B; the second is not asked where the first fails."""
    first = counterfactuals.control("A")
    return (first, counterfactuals.control("B")) if first.is_equal else (first,)


def prove(counterfactuals: Counterfactuals, subject: Subject = Subject.PATHS) -> ProofResult:
    """Controls first, then trials over the candidates.

    A control that fails ends the proof: if a run does not repeat itself there is nothing to blame yet.
    """
    controls = check_replays(counterfactuals)
    failed = [control for control in controls if not control.is_equal]
    if failed:
        note = f"run {failed[0].run} does not reproduce on this machine, so no counterfactual can be trusted"
        return _result(counterfactuals, subject, controls, Finding(Causality.UNTESTED, note=note))
    if not counterfactuals.candidates:
        note = "no site took another path" if subject is Subject.PATHS else "no site ran over another number of rows"
        return _result(counterfactuals, subject, controls, Finding(Causality.UNTESTED, note=note))
    find = _find_paths if subject is Subject.PATHS else _find_row_counts
    return _result(counterfactuals, subject, controls, find(counterfactuals))


def _find_paths(counterfactuals: Counterfactuals) -> Finding:
    everything = tuple(range(len(counterfactuals.candidates)))
    necessary = _smallest(counterfactuals, Direction.RESTORE, everything)
    if not necessary:
        # Restoring nothing: each of several may suffice, or the candidates are decoys.
        sufficient = _sufficient_alone(counterfactuals, everything)
        if sufficient:
            return _swapped(counterfactuals, Finding(Causality.EITHER, (), sufficient))
        note = "the candidates' paths differ, and changing them does not change the outcome"
        return Finding(Causality.NONE, note=note)
    if len(necessary) == 1 and _induces(counterfactuals, necessary):
        return _swapped(counterfactuals, Finding(Causality.ONE, necessary, (necessary,)))
    alone = _sufficient_alone(counterfactuals, necessary) if len(necessary) > 1 else ()
    if alone:
        return _swapped(counterfactuals, Finding(Causality.EITHER, necessary, alone))
    together = _smallest(counterfactuals, Direction.INDUCE, everything)
    causality = Causality.JOINT if len(together) > 1 else Causality.NECESSARY
    return _swapped(counterfactuals, Finding(causality, necessary, (together,) if together else ()))


def _find_row_counts(counterfactuals: Counterfactuals) -> Finding:
    """Where both runs agree once their kernels see no rows but one, the dependence on rows was the cause."""

    def agree(chosen: Indices) -> bool:
        return counterfactuals.neutral_trial(chosen).agree

    everything = tuple(range(len(counterfactuals.candidates)))
    origins = tuple(i for i in everything if counterfactuals.candidates[i].is_origin)
    # A changed kernel in both runs could bring equal tokens by luck, equal logits hardly.
    tried = (some for some in (origins, everything) if some)
    suspects = next((some for some in tried if counterfactuals.neutral_trial(some).same_logits), ())
    if not suspects:
        return Finding(Causality.NONE, note="with row-independent kernels at every candidate the runs still differ")
    cause = minimize(suspects, agree)
    causality = Causality.ONE if len(cause) == 1 else Causality.NECESSARY
    found = Finding(causality, cause, (cause,))
    if not counterfactuals.can_swap(cause):
        return found
    swapped = [counterfactuals.trial(direction, cause, Method.ROWS).flips for direction in Direction]
    return replace(found, swap_agrees=all(swapped))


def _swapped(counterfactuals: Counterfactuals, found: Finding) -> Finding:
    """The second test: the K/V rows of what the first one found, swapped both ways, must come out the same."""
    asked = [(Direction.RESTORE, found.cause)] if found.cause else []
    asked += [(Direction.INDUCE, some) for some in found.sufficient]
    testable = [(direction, chosen) for direction, chosen in asked if counterfactuals.can_swap(chosen)]
    if not testable:
        return found
    agrees = [counterfactuals.trial(direction, chosen, Method.ROWS).flips for direction, chosen in testable]
    return replace(found, swap_agrees=all(agrees))


def _induces(counterfactuals: Counterfactuals, chosen: Indices) -> bool:
    """Whether the candidates alone bring B's outcome into run A.

    Where the outcome is bits and not a token, a forced path need not bring them: over other rows, the same kernel may
    round otherwise. B's own K/V rows do.
    """
    if counterfactuals.trial(Direction.INDUCE, chosen).flips:
        return True
    by_rows = counterfactuals.asks_for_bits and counterfactuals.can_swap(chosen)
    return by_rows and counterfactuals.trial(Direction.INDUCE, chosen, Method.ROWS).flips


def _smallest(counterfactuals: Counterfactuals, direction: Direction, everything: Indices) -> Indices:
    """The smallest set that changes the outcome; empty when even all candidates together do not."""

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
    """Candidates that bring the other outcome by themselves; only origins are tried where there are many."""
    few = len(among) <= ASKED_ONE_BY_ONE
    tried = [i for i in among if few or counterfactuals.candidates[i].is_origin]
    return tuple((i,) for i in tried if _induces(counterfactuals, (i,)))


def _result(
    counterfactuals: Counterfactuals, subject: Subject, controls: tuple[ReplayControl, ...], found: Finding
) -> ProofResult:
    candidates: tuple[Candidate, ...] = counterfactuals.candidates
    trials: tuple[Trial, ...] = counterfactuals.trials
    return ProofResult(
        subject=subject,
        candidates=candidates,
        controls=controls,
        trials=trials,
        neutral_trials=counterfactuals.neutral_trials,
        causality=found.causality,
        cause=found.cause,
        sufficient=found.sufficient,
        swap_agrees=found.swap_agrees,
        reruns=counterfactuals.reruns,
        note=found.note,
    )
