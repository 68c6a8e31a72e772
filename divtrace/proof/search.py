"""Asks for trials over units of candidates, smallest sets first, within a budget. Must not know what they mean."""

from __future__ import annotations

from collections.abc import Callable

from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.minimize import Indices, minimize
from divtrace.proof.records import Direction, Method
from divtrace.proof.units import Unit, units_of

MOST_TRIALS = 96
"""Re-runs after which a set is left as small as it is. One cause among a million candidates needs about 40."""

ASKED_ONE_BY_ONE = 4
"""With more units than this only origins are tried alone: ddmin finds sets, this finds alternatives."""


class Search:
    """Questions about units of one proof; sets are numbers of units, `flat` gives their candidates."""

    def __init__(self, counterfactuals: Counterfactuals) -> None:
        self.counterfactuals = counterfactuals
        self.units: tuple[Unit, ...] = units_of(counterfactuals.candidates)
        self.is_exhausted = False

    @property
    def everything(self) -> Indices:
        """All units."""
        return tuple(range(len(self.units)))

    @property
    def origins(self) -> Indices:
        """Units with an origin of the walk."""
        candidates = self.counterfactuals.candidates
        return tuple(i for i in self.everything if any(candidates[c].is_origin for c in self.units[i]))

    def flat(self, chosen: Indices) -> Indices:
        """The candidates of units."""
        return tuple(sorted(candidate for unit in chosen for candidate in self.units[unit]))

    def restores(self, chosen: Indices) -> bool:
        """Whether run B without these comes out as run A."""
        return self.counterfactuals.trial(Direction.RESTORE, self.flat(chosen)).flips

    def induces(self, chosen: Indices) -> bool:
        """Whether run A with these comes out as run B.

        Where the outcome is bits and not a token, a forced path need not bring them: over other rows, the same kernel
        may round otherwise. B's own K/V rows do.
        """
        counterfactuals, candidates = self.counterfactuals, self.flat(chosen)
        if counterfactuals.trial(Direction.INDUCE, candidates).flips:
            return True
        by_rows = counterfactuals.asks_for_bits and counterfactuals.can_swap(candidates)
        return by_rows and counterfactuals.trial(Direction.INDUCE, candidates, Method.ROWS).flips

    def agree_when_neutral(self, chosen: Indices) -> bool:
        """Whether both runs come out alike with row-independent kernels at these."""
        return self.counterfactuals.neutral_trial(self.flat(chosen)).agree

    def smallest(self, test: Callable[[Indices], bool], most_trials: int = MOST_TRIALS) -> Indices:
        """The smallest set found for which `test` holds; empty when it does not even hold for all together."""
        # The walk's own suspicion first: one trial settles the usual case.
        for unit in self.origins[:1]:
            if test((unit,)):
                return (unit,)
        for suspects in (self.origins, self.everything):
            if suspects and test(suspects):
                return self.minimized(suspects, test, most_trials)
        return ()

    def minimized(self, chosen: Indices, test: Callable[[Indices], bool], most_trials: int = MOST_TRIALS) -> Indices:
        """`chosen` made as small as the budget of re-runs allows."""
        first = self.counterfactuals.reruns

        def test_in_budget(some: Indices) -> bool:
            if self.counterfactuals.reruns - first >= most_trials:
                self.is_exhausted = True
                return False
            return test(some)

        return minimize(chosen, test_in_budget)

    def enough_alone(self, among: Indices) -> tuple[Indices, ...]:
        """Units that bring B's outcome by themselves; only origins are tried where there are many."""
        few, origins = len(among) <= ASKED_ONE_BY_ONE, set(self.origins)
        return tuple((i,) for i in among if (few or i in origins) and self.induces((i,)))
