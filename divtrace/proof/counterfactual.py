"""Runs counterfactuals: one run played back to the deciding step with chosen candidates made like the other run.

A re-run starts at the first step that is changed, from the K/V rows that the unchanged run left. Results are kept, so
that an interrupted proof goes on where it stopped. Must not decide what to try.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from divtrace.align.index import TraceIndex
from divtrace.origin.records import Candidate, CandidateSite, OriginResult
from divtrace.proof.base_run import BaseRun
from divtrace.proof.cache import ResultCache, fingerprint
from divtrace.proof.decision import deciding
from divtrace.proof.records import Direction, Method, NeutralTrial, Outcome, ReplayControl, Trial
from divtrace.proof.swap import RowPlaces, matching_rows, swap_rows
from divtrace.replay.replay import Replayer
from engine.kernels.policy import AttentionPath, LinearPath, SiteOverride
from engine.known import KnownStep

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Question:
    """What a trial asks: which run is changed, how, and at which candidates (indices, increasing)."""

    direction: Direction
    method: Method
    chosen: tuple[int, ...]

    @property
    def key(self) -> str:
        """Its name in a cache."""
        return f"{self.direction.value}:{self.method.value}:{','.join(map(str, self.chosen))}"


ATTENTION_ONLY = {AttentionPath.SEGMENT.value, AttentionPath.ROW.value}


class Counterfactuals:
    """Plays both runs back with changes. `scratch` holds results so far; None keeps them in memory alone."""

    def __init__(
        self,
        a: Replayer,
        b: Replayer,
        origins: OriginResult,
        candidates: Sequence[Candidate],
        scratch: Path | None = None,
        progress: Progress = lambda _: None,
        bases: Mapping[str, BaseRun] | None = None,
    ) -> None:
        """`bases` are runs that another proof of the same decision has played already."""
        self.origins = origins
        self.candidates = tuple(candidates)
        self.bases: Mapping[str, BaseRun] = bases or {
            run: BaseRun(replayer, deciding(run, replayer.trace, origins)) for run, replayer in (("A", a), ("B", b))
        }
        self._indexes = {"A": TraceIndex(a.trace), "B": TraceIndex(b.trace)}
        self._cache = ResultCache(scratch, fingerprint((a.trace, b.trace), origins, self.candidates))
        self._progress = progress

    @property
    def asks_for_bits(self) -> bool:
        """True when the outcome under test is the deciding logits, not the token."""
        return self.outcome is Outcome.LOGITS

    @property
    def outcome(self) -> Outcome:
        """What re-runs are held against."""
        repeatable = all(base.deciding.is_repeatable for base in self.bases.values())
        return Outcome.TOKEN if self.origins.flipped and repeatable else Outcome.LOGITS

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial so far, in the order in which it was first asked for."""
        return tuple(self._cache.results.trials.values())

    @property
    def neutral_trials(self) -> tuple[NeutralTrial, ...]:
        """The same for trials that change both runs."""
        return tuple(self._cache.results.neutral_trials.values())

    @property
    def reruns(self) -> int:
        """Playbacks behind the results."""
        results = self._cache.results
        return len(results.controls) + len(results.trials) + 2 * len(results.neutral_trials)

    def control(self, run: str) -> ReplayControl:
        """Play `run` back unchanged up to the deciding step and compare it with its trace, bit for bit."""
        controls = self._cache.results.controls
        if run not in controls:
            controls[run] = self._play(run)
            self._cache.save()
        return controls[run]

    def require_rows(self, *runs: str) -> None:
        """Play runs whose rows an earlier, interrupted proof had and this process has not."""
        for run in runs:
            if not self.bases[run].is_played:
                self._cache.results.controls[run] = self._play(run)

    def overrides_of(self, direction: Direction, chosen: Sequence[int]) -> tuple[SiteOverride, ...]:
        """The paths that a path trial forces."""
        run = "B" if direction is Direction.RESTORE else "A"
        return tuple(self._overrides(run, [self.candidates[i] for i in chosen]))

    def can_swap(self, chosen: Sequence[int]) -> bool:
        """True when the K/V rows of these candidates are all that the decision saw of them.

        The deciding step's own logits come from its hidden states, so swapping its rows would test nothing.
        """
        before = all(
            self._step(run, self.candidates[i]) < base.deciding.step for i in chosen for run, base in self.bases.items()
        )
        return bool(chosen) and before and all(self._places("B", self.candidates[i]).own for i in chosen)

    def trial(self, direction: Direction, chosen: Sequence[int], method: Method = Method.PATH) -> Trial:
        """Make the candidates `chosen` of one run like the other's, and see what it decides."""
        question = Question(direction, method, tuple(sorted(chosen)))
        trials = self._cache.results.trials
        if question.key not in trials:
            trials[question.key] = self._answer(question)
            self._cache.save()
        return trials[question.key]

    def neutral_trial(self, chosen: Sequence[int]) -> NeutralTrial:
        """Give both runs row-independent kernels at the candidates `chosen`, and see whether they then agree."""
        indices = tuple(sorted(chosen))
        key = f"neutral:{','.join(map(str, indices))}"
        trials = self._cache.results.neutral_trials
        if key not in trials:
            trials[key] = self._answer_neutral(indices)
            self._cache.save()
        return trials[key]

    # --- one re-run ------------------------------------------------------------------------------------------------

    def _answer(self, question: Question) -> Trial:
        run, other = ("B", "A") if question.direction is Direction.RESTORE else ("A", "B")
        self.require_rows(run, *((other,) if question.method is Method.ROWS else ()))
        base, chosen = self.bases[run], [self.candidates[i] for i in question.chosen]
        steps = sorted({self._step(run, candidate) for candidate in chosen})
        what = "paths" if question.method is Method.PATH else "K/V rows"
        self._progress(f"{question.direction}: run {run} with {other}'s {what} of step {', '.join(map(str, steps))}")
        started = time.perf_counter()
        if question.method is Method.PATH:
            seen, computed = base.replay_from(steps[0], self.overrides_of(question.direction, question.chosen))
        else:
            swapped = {step: self._swapped(run, other, step) for step in steps}
            seen, computed = base.replay_from(steps[0], swapped=swapped)
        asked, hash_wanted = base.deciding, self.bases[other].deciding.logits_hash
        return Trial(
            outcome=self.outcome,
            direction=question.direction,
            method=question.method,
            candidates=question.chosen,
            chosen_token=seen.chosen,
            own_token=asked.own_token,
            other_token=asked.other_token,
            same_logits=None if hash_wanted is None else seen.logits_hash == hash_wanted,
            margin=asked.margin(seen.processed),
            margin_without=self.control(run).margin,
            steps=computed,
            elapsed_s=time.perf_counter() - started,
        )

    def _answer_neutral(self, chosen: tuple[int, ...]) -> NeutralTrial:
        self.require_rows("A", "B")
        candidates = [self.candidates[i] for i in chosen]
        self._progress(f"both runs with row-independent kernels at {len(candidates)} pairs of steps")
        started = time.perf_counter()
        seen, computed = {}, 0
        for run, base in self.bases.items():
            first = min(self._step(run, candidate) for candidate in candidates)
            seen[run], steps = base.replay_from(first, tuple(self._neutral(run, candidates)))
            computed += steps
        same_logits = seen["A"].logits_hash == seen["B"].logits_hash
        same_token = seen["A"].chosen == seen["B"].chosen
        return NeutralTrial(
            candidates=chosen,
            token_a=seen["A"].chosen,
            token_b=seen["B"].chosen,
            same_logits=same_logits,
            agree=same_logits if self.asks_for_bits else same_token,
            steps=computed,
            elapsed_s=time.perf_counter() - started,
        )

    def _play(self, run: str) -> ReplayControl:
        played = self.bases[run].control
        if played is not None:
            return played
        self._progress(f"control: run {run} played back unchanged")
        with tempfile.TemporaryDirectory(prefix="divtrace-") as folder:
            return self.bases[run].play(Path(folder))

    # --- what is changed -------------------------------------------------------------------------------------------

    @staticmethod
    def _step(run: str, candidate: Candidate) -> int:
        return candidate.step_b if run == "B" else candidate.step_a

    def _overrides(self, run: str, chosen: Iterable[Candidate]) -> Iterable[SiteOverride]:
        for candidate in chosen:
            for site in candidate.sites:
                yield SiteOverride(self._step(run, candidate), site.site, site.path_a if run == "B" else site.path_b)

    def _neutral(self, run: str, chosen: Iterable[Candidate]) -> Iterable[SiteOverride]:
        for candidate in chosen:
            for site in candidate.sites:
                yield SiteOverride(self._step(run, candidate), site.site, _row_independent_path(site))

    def _swapped(self, run: str, other: str, step: int) -> KnownStep:
        """The rows of one step of `run`, as the other run has them, in whichever steps it computed them.

        A path that is forced at a step reaches all its rows, so the rows of every candidate with that step are swapped.
        """
        own, foreign = self.bases[run].rows[step], self.bases[other].rows
        for candidate in self.candidates:
            if self._step(run, candidate) == step:
                own = swap_rows(own, foreign[self._step(other, candidate)], self._places(run, candidate))
        return own

    def _places(self, run: str, candidate: Candidate) -> RowPlaces:
        """Rows that both steps of the candidate computed: of the blamed request, and of those that made its origins."""
        other = "A" if run == "B" else "B"
        pairs = {(self.origins.request_a, self.origins.request_b)} | {
            (origin.request_a, origin.request_b)
            for origin in self.origins.origins
            if (origin.step_a, origin.step_b) == (candidate.step_a, candidate.step_b)
        }
        oriented = [(b, a) if run == "B" else (a, b) for a, b in sorted(pairs)]
        steps = self._step(run, candidate), self._step(other, candidate)
        return matching_rows(self._indexes[run], steps[0], self._indexes[other], steps[1], oriented)


def _row_independent_path(site: CandidateSite) -> str:
    """The path of the same operation that no other row can change."""
    is_attention = bool({site.path_a, site.path_b} & ATTENTION_ONLY)
    return AttentionPath.ROW.value if is_attention else LinearPath.GEMV.value
