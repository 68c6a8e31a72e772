"""Runs a recorded run again: as it was, or with single kernel paths or K/V rows changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from divtrace.errors import EvidenceError
from divtrace.recorder.recorder import Recorder
from divtrace.recording import StepCallback
from divtrace.replay.schedule import RecordedRun, read_run
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level
from engine.decide import ForcedTokens
from engine.engine import Engine
from engine.kernels.policy import SiteOverride
from engine.known import KnownStep
from engine.model.load import LoadedModel
from engine.observer import Observer
from engine.request import Request
from engine.scheduling.pinned import PinnedRows, PinnedStep


class Replayer:
    """Plays one trace back on a loaded model, as often as asked."""

    def __init__(self, trace: Trace, loaded: LoadedModel) -> None:
        """Raises EvidenceError when the model's weights are not those of the trace."""
        if loaded.weights_hash != trace.header.weights_hash:
            raise EvidenceError(
                f"{trace.path} was recorded with weights {trace.header.weights_hash}, {loaded.source} has "
                f"{loaded.weights_hash}; give the model that made the trace with --model."
            )
        self.trace = trace
        self.loaded = loaded
        self.run: RecordedRun = read_run(trace)

    @property
    def keeps_kv_rows(self) -> bool:
        """Whether the run's own recorder asked for K/V rows: on a GPU even that may pick a kernel."""
        return self.trace.header.level.includes(Level.KV)

    @property
    def requests(self) -> list[Request]:
        """The run's requests; what ended them from outside is pinned in the schedule."""
        return [replace(request, cancel_at_step=None, timeout_s=None) for request in self.run.requests]

    def play(
        self,
        output: Path,
        last_step: int | None = None,
        overrides: tuple[SiteOverride, ...] = (),
        free_from: dict[str, int] | None = None,
        level: Level | None = None,
        on_step: StepCallback | None = None,
        observers: Sequence[Observer] = (),
    ) -> int:
        """Play steps `0 .. last_step` back and write a trace to `output`; returns the steps that ran.

        The schedule is pinned, and so are the committed tokens: decisions are recorded as the logits make them, but
        what is fed afterwards is what the run committed. `free_from` names output indices from which a request commits
        its own choices. `observers` listen beside the recorder.

        Raises:
            PlaybackError: the run cannot be followed; names the step.
        """
        header = self.trace.header
        recorder = Recorder(
            output, level=level or header.level, top_k=header.top_k, overwrite=True, hash_name=header.hash_name
        )
        forced = self._forced(free_from or {})
        return self.watch((recorder, *observers), last_step, overrides, forced=forced, on_step=on_step)

    def watch(
        self,
        observers: Sequence[Observer],
        last_step: int | None = None,
        overrides: tuple[SiteOverride, ...] = (),
        known: Mapping[int, KnownStep] | None = None,
        forced: ForcedTokens | None = None,
        on_step: StepCallback | None = None,
    ) -> int:
        """Play steps `0 .. last_step` back to `observers`, without writing anything; returns the steps computed.

        Steps in `known` are not computed: their K/V rows are stored as given, and no observer hears of them. Where
        they are the run's own rows, the others come out as in a playback from step 0, bit for bit.

        Raises:
            PlaybackError: the run cannot be followed; names the step.
        """
        stop = len(self.run.steps) if last_step is None else last_step + 1
        steps = self.run.steps[:stop]
        return self._serve(observers, self.requests, steps, overrides, known, forced or self.run.forced, on_step)

    def continue_alone(
        self,
        observers: Sequence[Observer],
        last_step: int,
        request_id: str,
        tokens: Sequence[int],
        positions: int,
        overrides: tuple[SiteOverride, ...] = (),
        known: Mapping[int, KnownStep] | None = None,
    ) -> None:
        """Play up to `last_step`, then go on with one request by itself, one row a step, fed `tokens` as its output.

        Ends after `positions` steps of its own, or earlier where `tokens` end or K/V memory is full.
        """
        steps: list[PinnedStep] = list(self.run.steps[: last_step + 1])
        outputs = {**self.run.forced.outputs, request_id: tuple(tokens)}
        stop = len(steps) + positions

        def plan_next(engine: Engine) -> None:
            state = engine.states.get(request_id)
            if state is None:
                return
            if engine.step_number != len(steps) or len(steps) >= stop or len(state.output) >= len(tokens):
                return
            if engine.store.can_grow({request_id: state.known_tokens}):
                row = PinnedRows(request_id, state.computed_tokens, state.uncomputed_tokens, 0)
                steps.append(PinnedStep((row,)))

        requests = [_unending(r, len(tokens) + 1) if r.id == request_id else r for r in self.requests]
        self._serve(observers, requests, steps, overrides, known, ForcedTokens(outputs), plan_next)

    def _serve(
        self,
        observers: Sequence[Observer],
        requests: Sequence[Request],
        steps: Sequence[PinnedStep],
        overrides: tuple[SiteOverride, ...],
        known: Mapping[int, KnownStep] | None,
        forced: ForcedTokens,
        on_step: StepCallback | None,
    ) -> int:
        """Run an engine to the end of `steps`, which may grow meanwhile; returns the steps that were computed."""
        pinned_paths = (*overrides, *self.run.overrides)
        engine = Engine(self.loaded, self.run.settings, observers, pinned_paths, forced, steps, known)
        with engine:
            for request in requests:
                engine.submit(request)
            while engine.step():
                if on_step is not None:
                    on_step(engine)
            return engine.step_number - len(engine.known)

    def _forced(self, free_from: dict[str, int]) -> ForcedTokens:
        outputs = self.run.forced.outputs
        return ForcedTokens({name: tokens[: free_from.get(name, len(tokens))] for name, tokens in outputs.items()})


def _unending(request: Request, max_tokens: int) -> Request:
    """The request without stop rules and with room for `max_tokens` output tokens."""
    room = max(request.max_tokens, max_tokens)
    return replace(request, max_tokens=room, stop_token_ids=(), stop_strings=(), ignore_eos=True)
