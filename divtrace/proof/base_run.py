"""One run as it was: played back once, held against its trace, its K/V rows kept for re-runs to start from.

Must not know candidates.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from divtrace.errors import EvidenceError
from divtrace.proof.decision import Deciding
from divtrace.proof.records import ReplayControl
from divtrace.replay.replay import Replayer
from divtrace.replay.verify import compare_replay
from divtrace.replay.watchers import DecisionWatcher, RowKeeper, SeenDecision
from divtrace.trace.reader import open_trace
from engine.kernels.policy import SiteOverride
from engine.known import KnownStep


class BaseRun:
    """A run, its decision, and (after `play`) the K/V rows of its steps up to that decision."""

    def __init__(self, replayer: Replayer, deciding: Deciding) -> None:
        self.replayer = replayer
        self.deciding = deciding
        self._rows: dict[int, KnownStep] = {}
        self._control: ReplayControl | None = None

    @property
    def control(self) -> ReplayControl | None:
        """How the playback came out, None before it."""
        return self._control

    @property
    def is_played(self) -> bool:
        """True when the rows of the run are at hand."""
        return self._control is not None

    @property
    def rows(self) -> Mapping[int, KnownStep]:
        """K/V rows by step; call `play` first."""
        return self._rows

    def play(self, scratch: Path) -> ReplayControl:
        """Play the run back unchanged up to the deciding step and compare it with its trace, bit for bit."""
        started = time.perf_counter()
        keeper, watcher = RowKeeper(), self._watcher()
        target = scratch / f"control-{self.deciding.run}.h5"
        self.replayer.play(target, last_step=self.deciding.step, observers=(keeper, watcher))
        with open_trace(target) as replayed:
            result = compare_replay(self.replayer.trace, replayed)
        target.unlink()
        self._rows = keeper.steps
        seen = watcher.seen.get(self.deciding.position)
        self._control = ReplayControl(
            run=self.deciding.run,
            is_equal=result.is_equal,
            steps=result.steps,
            first_differing_step=result.first_step,
            what=result.what,
            margin=None if seen is None else self.deciding.margin(seen.processed),
            elapsed_s=time.perf_counter() - started,
        )
        return self._control

    def replay_from(
        self, first_step: int, overrides: tuple[SiteOverride, ...] = (), swapped: Mapping[int, KnownStep] | None = None
    ) -> tuple[SeenDecision, int]:
        """Compute steps `first_step` up to the deciding one with changes; returns the decision, and steps computed.

        Steps before `first_step` are the run's own. `swapped` gives steps whose K/V rows are taken from there.
        """
        known = {step: rows for step, rows in self._rows.items() if step < first_step} | dict(swapped or {})
        watcher = self._watcher()
        steps = self.replayer.watch((watcher,), self.deciding.step, overrides, known)
        seen = watcher.seen.get(self.deciding.position)
        if seen is None:
            raise EvidenceError(
                f"a re-run of {self.replayer.trace.path} did not reach position {self.deciding.position}."
            )
        return seen, steps

    def continue_alone(
        self, tokens: Sequence[int], positions: int, overrides: tuple[SiteOverride, ...] = ()
    ) -> dict[int, SeenDecision]:
        """Decisions from the deciding position on, the request alone and fed `tokens` (its whole output).

        `positions` more decisions are made behind the deciding one, fewer where `tokens` or K/V memory end.
        """
        first = min((override.step for override in overrides), default=self.deciding.step)
        known = {step: rows for step, rows in self._rows.items() if step < first}
        watcher = self._watcher()
        self.replayer.continue_alone(
            (watcher,), self.deciding.step, self.deciding.request_id, tokens, positions, overrides, known
        )
        return watcher.seen

    def _watcher(self) -> DecisionWatcher:
        return DecisionWatcher(self.deciding.request_id, self.deciding.position, self.replayer.keeps_kv_rows)
