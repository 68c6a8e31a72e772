"""Pairs of recorded runs on tiny models: an anchor that decodes, and a follower that joins it or waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from divtrace.align.runs import RunPair
from divtrace.origin.find import find_origins_of
from divtrace.origin.records import OriginResult
from divtrace.proof.counterfactual import Counterfactuals
from divtrace.recorder.recorder import Recorder
from divtrace.recording import run_recorded
from divtrace.replay.replay import Replayer
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from engine.kernels.policy import SiteOverride
from engine.model.load import LoadedModel
from engine.request import Arrival, Request
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model

FLIPPING_PROMPTS = (168, 63, 195)
"""First tokens of prompts after which the tiny model decides a near tie otherwise when the follower joins."""


@cache
def model() -> LoadedModel:
    return tiny_model("llama", quantized=True, seed=1)


def prompt(first: int, length: int = 12) -> tuple[int, ...]:
    return tuple((first + 7 * index) % 256 for index in range(length))


def handoff(first: int, tokens: int = 40) -> list[Request]:
    """The follower comes after the anchor's first token, and is gone soon."""
    arrival = Arrival(after_request="anchor", after_tokens=1)
    return [
        Request("anchor", prompt(first), tokens, ignore_eos=True),
        Request("follower", tuple(range(60, 84)), 4, ignore_eos=True, arrival=arrival),
    ]


def record(
    path: Path,
    requests: Sequence[Request],
    overrides: tuple[SiteOverride, ...] = (),
    level: Level = Level.KV,
    loaded: LoadedModel | None = None,
    **settings: object,
) -> Path:
    configuration = EngineSettings(**({"policy": "threshold:4", "kv_blocks": 32} | settings))  # type: ignore[arg-type]
    run_recorded(loaded or model(), configuration, requests, Recorder(path, level=level), overrides=overrides)
    return path


@dataclass(frozen=True)
class Pair:
    """Two open traces, the walk's answer, and a player of each."""

    runs: RunPair
    origins: OriginResult
    a: Replayer
    b: Replayer

    def counterfactuals(self, scratch: Path | None = None) -> Counterfactuals:
        return Counterfactuals(self.a, self.b, self.origins, self.origins.candidates, scratch)


@contextmanager
def opened(a: Path, b: Path, loaded: LoadedModel | None = None, request: str | None = "anchor") -> Iterator[Pair]:
    with open_trace(a) as trace_a, open_trace(b) as trace_b:
        runs = RunPair(trace_a, trace_b)
        players = [Replayer(trace, loaded or model()) for trace in (trace_a, trace_b)]
        yield Pair(runs, find_origins_of(runs, request), players[0], players[1])


def flipping_pair(folder: Path, **settings: object) -> tuple[Path, Path]:
    """Record pairs until one flips; which of them do depends on how this machine's BLAS rounds."""
    for first in FLIPPING_PROMPTS:
        requests = handoff(first, 30)
        a = record(folder / f"serial-{first}.h5", requests, max_active=1, **settings)
        b = record(folder / f"batched-{first}.h5", requests, max_active=2, **settings)
        with opened(a, b) as pair:
            if pair.origins.flipped:
                return a, b
    raise AssertionError("none of the prompts flips on this machine; search others")
