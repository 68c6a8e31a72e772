"""Runs counterfactuals: one run played back to the deciding step with the paths of chosen candidates changed.

Results are kept in a folder by content, so that an interrupted proof goes on where it stopped. Must not decide what
to try.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from divtrace.errors import EvidenceError
from divtrace.origin.records import Candidate, OriginResult
from divtrace.proof.records import Direction, ReplayControl, Trial
from divtrace.replay.replay import Replayer
from divtrace.replay.verify import compare_replay
from divtrace.trace.reader import Trace, open_trace
from engine.kernels.policy import SiteOverride

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Deciding:
    """The decision under test in one run: its step, request (row in requests), position, and both tokens."""

    step: int
    request: int
    position: int
    own_token: int
    other_token: int


class Counterfactuals:
    """Plays both runs back with changes. `scratch` holds traces of re-runs and `trials.json`, the results so far."""

    def __init__(self, a: Replayer, b: Replayer, origins: OriginResult, scratch: Path, progress: Progress) -> None:
        self.origins = origins
        self.candidates: tuple[Candidate, ...] = origins.candidates
        self._replayers = {"A": a, "B": b}
        self._scratch = scratch
        self._progress = progress
        self._cache_path = scratch / f"trials-{self._fingerprint()}.json"
        self._trials: dict[str, Trial] = self._read_cache()
        self.reruns = 0
        self._baseline: dict[str, float | None] = {}

    @property
    def trials(self) -> tuple[Trial, ...]:
        """Every trial so far, in the order in which it was first asked for."""
        return tuple(self._trials.values())

    def control(self, run: str) -> ReplayControl:
        """Play `run` back unchanged up to the deciding step and compare it with its trace, bit for bit."""
        replayer, deciding = self._replayers[run], self.deciding(run)
        self._progress(f"control: run {run} played back unchanged")
        started = time.perf_counter()
        target = self._scratch / f"control-{run}.h5"
        replayer.play(target, last_step=deciding.step)
        with open_trace(target) as replayed:
            result = compare_replay(replayer.trace, replayed)
        return ReplayControl(
            run, result.is_equal, result.steps, result.first_step, result.what, time.perf_counter() - started
        )

    def deciding(self, run: str) -> Deciding:
        """The decision under test as `run` made it."""
        origins = self.origins
        is_a = run == "A"
        names = self._replayers[run].trace.request_ids()
        return Deciding(
            step=origins.step_a if is_a else origins.step_b,
            request=names.index(origins.request_a if is_a else origins.request_b),
            position=origins.position,
            own_token=(origins.token_a if is_a else origins.token_b).id,
            other_token=(origins.token_b if is_a else origins.token_a).id,
        )

    def trial(self, direction: Direction, chosen: Sequence[int]) -> Trial:
        """Force the candidates `chosen` in one run to the paths of the other, and see what it decides."""
        key = f"{direction.value}:{','.join(map(str, sorted(chosen)))}"
        if key not in self._trials:
            self._trials[key] = self._run(direction, tuple(sorted(chosen)))
            self._write_cache()
        return self._trials[key]

    def _run(self, direction: Direction, chosen: tuple[int, ...]) -> Trial:
        run = "B" if direction is Direction.RESTORE else "A"
        replayer, deciding = self._replayers[run], self.deciding(run)
        steps = sorted({self._step(run, self.candidates[i]) for i in chosen})
        self._progress(f"{direction.value}: run {run} with the other run's paths at step {', '.join(map(str, steps))}")
        started = time.perf_counter()
        target = self._scratch / f"{direction.value}-{'-'.join(map(str, chosen))[:80]}.h5"
        ran = replayer.play(target, last_step=deciding.step, overrides=self._overrides(run, chosen))
        self.reruns += 1
        with open_trace(target) as changed:
            token, margin = _decision_in(changed, deciding)
        _, margin_without = _decision_in(replayer.trace, deciding)
        target.unlink()
        return Trial(
            direction=direction,
            candidates=chosen,
            chosen_token=token,
            own_token=deciding.own_token,
            other_token=deciding.other_token,
            margin=margin,
            margin_without=margin_without,
            steps=ran,
            elapsed_s=time.perf_counter() - started,
        )

    def _overrides(self, run: str, chosen: tuple[int, ...]) -> tuple[SiteOverride, ...]:
        overrides = []
        for index in chosen:
            candidate = self.candidates[index]
            step = self._step(run, candidate)
            for site in candidate.sites:
                overrides.append(SiteOverride(step, site.site, site.path_a if run == "B" else site.path_b))
        return tuple(overrides)

    @staticmethod
    def _step(run: str, candidate: Candidate) -> int:
        return candidate.step_b if run == "B" else candidate.step_a

    def _fingerprint(self) -> str:
        """Names what the cached results belong to: both traces' digests, the decision, the candidates, the weights."""
        hasher = xxhash.xxh3_128()
        for replayer in self._replayers.values():
            header = replayer.trace.header
            hasher.update(f"{header.weights_hash}{header.settings}{header.environment}".encode())
            hasher.update(np.ascontiguousarray(replayer.trace.column("sampled", "chosen")).tobytes())
            hasher.update(np.ascontiguousarray(replayer.trace.column("steps", "digest")).tobytes())
        hasher.update(repr((self.origins.request_a, self.origins.position, self.candidates)).encode())
        return hasher.hexdigest()

    def _read_cache(self) -> dict[str, Trial]:
        try:
            stored = json.loads(self._cache_path.read_text(encoding="utf-8"))
            return {key: _trial_from_json(value) for key, value in stored.items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write_cache(self) -> None:
        document = {key: _trial_to_json(trial) for key, trial in self._trials.items()}
        partial = self._cache_path.with_suffix(".part")
        partial.write_text(json.dumps(document), encoding="utf-8")
        partial.replace(self._cache_path)


def _decision_in(trace: Trace, deciding: Deciding) -> tuple[int, float | None]:
    """The token that was chosen, and own minus other logit where both are among the top-k."""
    request, position = trace.column("sampled", "request"), trace.column("sampled", "position")
    step = trace.column("sampled", "step")
    found = np.flatnonzero((request == deciding.request) & (position == deciding.position) & (step == deciding.step))
    if found.size == 0:
        raise EvidenceError(
            f"{trace.path} has no decision of position {deciding.position} in step {deciding.step}; replay it first."
        )
    record = int(found[0])
    token = int(trace.column("sampled", "chosen", record, record + 1)[0])
    if not trace.has_column("sampled", "processed_top_ids"):
        return token, None
    ids = trace.column("sampled", "processed_top_ids", record, record + 1)[0].tolist()
    values = trace.column("sampled", "processed_top_values", record, record + 1)[0].tolist()
    logits = dict(zip(ids, values, strict=True))
    if deciding.own_token not in logits or deciding.other_token not in logits:
        return token, None
    return token, float(logits[deciding.own_token] - logits[deciding.other_token])


def _trial_to_json(trial: Trial) -> dict[str, object]:
    return {name: getattr(trial, name) for name in Trial.__slots__}


def _trial_from_json(value: dict[str, object]) -> Trial:
    fields = dict(value)
    fields["direction"] = Direction(str(fields["direction"]))
    fields["candidates"] = tuple(int(i) for i in fields["candidates"])  # type: ignore[attr-defined]
    return Trial(**fields)  # type: ignore[arg-type]
