"""Runs a recorded run again: as it was, or with single kernel paths changed. Writes a trace like any other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from divtrace.errors import EvidenceError
from divtrace.recorder import Recorder
from divtrace.recording import StepCallback, run_recorded
from divtrace.replay.schedule import RecordedRun, read_run
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level
from engine.decide import ForcedTokens
from engine.kernels.policy import SiteOverride
from engine.model.load import LoadedModel


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

    def play(
        self,
        output: Path,
        last_step: int | None = None,
        overrides: tuple[SiteOverride, ...] = (),
        free_from: dict[str, int] | None = None,
        level: Level | None = None,
        on_step: StepCallback | None = None,
    ) -> int:
        """Play steps `0 .. last_step` back and write a trace to `output`; returns the steps that ran.

        The schedule is pinned, and so are the committed tokens: decisions are recorded as the logits make them, but
        what is fed afterwards is what the run committed. `free_from` names output indices from which a request commits
        its own choices.

        Raises:
            PlaybackError: the run cannot be followed; names the step.
        """
        stop = len(self.run.steps) if last_step is None else last_step + 1
        recorder = Recorder(
            output, level=level or self.trace.header.level, top_k=self.trace.header.top_k, overwrite=True
        )
        _, steps = run_recorded(
            self.loaded,
            self.run.settings,
            [replace(request, cancel_at_step=None, timeout_s=None) for request in self.run.requests],
            recorder,
            overrides=overrides,
            forced=self._forced(free_from or {}),
            pinned=self.run.steps[:stop],
            on_step=on_step,
        )
        return steps

    def _forced(self, free_from: dict[str, int]) -> ForcedTokens:
        outputs = self.run.forced.outputs
        return ForcedTokens({name: tokens[: free_from.get(name, len(tokens))] for name, tokens in outputs.items()})
