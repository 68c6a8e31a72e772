"""What the trials show: one cause, either of several, only together, none. The argument of `divtrace blame` is here."""

from __future__ import annotations

from dataclasses import dataclass, replace

from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.limits import MOST_JOINT_TRIALS
from divtrace.proof.minimize import Indices
from divtrace.proof.records import Causality, Direction, Method, ProofResult, ReplayControl, Subject
from divtrace.proof.search import Search


@dataclass(frozen=True, slots=True)
class Finding:
    """What trials of one subject showed, before they are put beside controls. Sets are numbers of units."""

    causality: Causality
    cause: Indices = ()
    sufficient: tuple[Indices, ...] = ()
    swap_agrees: bool | None = None
    note: str = ""


def check_replays(counterfactuals: Counterfactuals) -> tuple[ReplayControl, ...]:
    """A against A, then B against B; the second is not asked where the first fails."""
    first = counterfactuals.control("A")
    return (first, counterfactuals.control("B")) if first.is_equal else (first,)


def prove(
    counterfactuals: Counterfactuals, subject: Subject = Subject.PATHS, joint_trials: int = MOST_JOINT_TRIALS
) -> ProofResult:
    """Controls first, then trials over the candidates.

    A control that fails ends the proof: if a run does not repeat itself there is nothing to blame yet. `joint_trials`
    bounds the re-runs that make a joint set smaller.
    """
    search, controls = Search(counterfactuals), check_replays(counterfactuals)
    failed = [control for control in controls if not control.is_equal]
    if failed:
        note = f"run {failed[0].run} does not reproduce on this machine, so no counterfactual can be trusted"
        found = Finding(Causality.UNTESTED, note=note)
    elif not counterfactuals.candidates:
        note = "no site took another path" if subject is Subject.PATHS else "no site ran over another number of rows"
        found = Finding(Causality.UNTESTED, note=note)
    else:
        found = _find_paths(search, joint_trials) if subject is Subject.PATHS else _find_row_counts(search)
    if search.is_exhausted:
        found = replace(
            found, note="the search for a smaller set ended at its limit of re-runs; the set may not be the smallest"
        )
    return _result(search, subject, controls, found)


def _find_paths(search: Search, joint_trials: int) -> Finding:
    necessary = search.smallest(search.restores)
    if not necessary:
        # Restoring nothing: each of several may suffice, or the candidates are decoys.
        sufficient = search.enough_alone(search.everything)
        if sufficient:
            return _swapped(search, Finding(Causality.EITHER, (), sufficient))
        note = "the candidates' paths differ, and changing them does not change the outcome"
        return Finding(Causality.NONE, note=note)
    if len(necessary) == 1 and search.induces(necessary):
        return _swapped(search, Finding(Causality.ONE, necessary, (necessary,)))
    alone = search.enough_alone(necessary) if len(necessary) > 1 else ()
    if alone:
        return _swapped(search, Finding(Causality.EITHER, necessary, alone))
    together = search.smallest(search.induces, joint_trials)
    causality = Causality.JOINT if len(together) > 1 else Causality.NECESSARY
    return _swapped(search, Finding(causality, necessary, (together,) if together else ()))


def _find_row_counts(search: Search) -> Finding:
    """Where both runs agree once their kernels see no rows but one, the dependence on rows was the cause."""
    counterfactuals = search.counterfactuals
    tried = (some for some in (search.origins, search.everything) if some)
    # A changed kernel in both runs could bring equal tokens by luck, equal logits hardly.
    suspects = next((some for some in tried if counterfactuals.neutral_trial(search.flat(some)).same_logits), ())
    if not suspects:
        return Finding(Causality.NONE, note="with row-independent kernels at every candidate the runs still differ")
    cause = search.minimized(suspects, search.agree_when_neutral)
    found = Finding(Causality.ONE if len(cause) == 1 else Causality.NECESSARY, cause, (cause,))
    candidates = search.flat(cause)
    if not counterfactuals.can_swap(candidates):
        return found
    swapped = [counterfactuals.trial(direction, candidates, Method.ROWS).flips for direction in Direction]
    return replace(found, swap_agrees=all(swapped))


def _swapped(search: Search, found: Finding) -> Finding:
    """The second test: the K/V rows of what the first one found, swapped both ways, must come out the same."""
    asked = [(Direction.RESTORE, search.flat(found.cause))] if found.cause else []
    asked += [(Direction.INDUCE, search.flat(some)) for some in found.sufficient]
    testable = [(direction, chosen) for direction, chosen in asked if search.counterfactuals.can_swap(chosen)]
    if not testable:
        return found
    agrees = [search.counterfactuals.trial(direction, chosen, Method.ROWS).flips for direction, chosen in testable]
    return replace(found, swap_agrees=all(agrees))


def _result(search: Search, subject: Subject, controls: tuple[ReplayControl, ...], found: Finding) -> ProofResult:
    counterfactuals = search.counterfactuals
    return ProofResult(
        subject=subject,
        candidates=counterfactuals.candidates,
        controls=controls,
        trials=counterfactuals.trials,
        neutral_trials=counterfactuals.neutral_trials,
        causality=found.causality,
        cause=search.flat(found.cause),
        sufficient=tuple(search.flat(some) for some in found.sufficient),
        swap_agrees=found.swap_agrees,
        reruns=counterfactuals.reruns,
        note=found.note,
    )
