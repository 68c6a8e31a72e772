"""What recording costs: `python -m divtrace.bench`. Paired and interleaved in one run; ratios count, not seconds.

Each round serves the same requests once per level and once without an observer, in an order that rotates. The table
gives the median over rounds of (time at this level) / (time without an observer in the same round), and bytes per
row on disk. With --hash, level kv is measured once per named hash of K/V rows, else with the one that suits the device.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from divtrace.recorder.recorder import Recorder
from divtrace.recording import load_shared, resolve_model
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import GRAPH_HASH_NAME, HASH_NAME, Level
from engine.engine import Engine
from engine.model.load import LoadedModel
from engine.observer import Observer
from engine.request import Request
from engine.settings import EngineSettings
from fixtures.prompts import ANCHORS

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve: recorded at `level` (None: not at all), K/V rows hashed with `hash_name` (None: as suits)."""

    level: Level | None
    hash_name: str | None = None

    def __str__(self) -> str:
        words = ("off" if self.level is None else self.level.value, self.hash_name)
        return " ".join(word for word in words if word)

    def trace_path(self, folder: Path) -> Path:
        """Where its trace lies."""
        return folder / f"{str(self).replace(' ', '-')}.h5"

    def observers(self, folder: Path) -> tuple[Observer, ...]:
        """The recorder, where there is one."""
        if self.level is None:
            return ()
        return (Recorder(self.trace_path(folder), self.level, overwrite=True, hash_name=self.hash_name),)


def variants(hash_names: Sequence[str | None]) -> tuple[Variant, ...]:
    """Without a recorder, at every level below kv, and at level kv with each of these hashes."""
    below = (Variant(level) for level in (None, Level.TOKENS, Level.LOGITS))
    return (*below, *(Variant(Level.KV, name) for name in hash_names))


def serve(
    loaded: LoadedModel,
    settings: EngineSettings,
    tokens: int,
    requests: int,
    observers: Sequence[Observer],
    clock: Clock = time.perf_counter,
) -> float:
    """Serve the requests and return the seconds from the first step to the last."""
    with Engine(loaded, settings, observers) as engine:
        for index in range(requests):
            messages = [{"role": "user", "content": ANCHORS[index % len(ANCHORS)]}]
            prompt = tuple(loaded.tokenizer.apply_chat_template(messages))
            engine.submit(Request(f"r{index}", prompt, tokens, ignore_eos=True))
        started = clock()
        engine.run()
        return clock() - started


def one_round(
    loaded: LoadedModel,
    settings: EngineSettings,
    tokens: int,
    requests: int,
    folder: Path,
    order: Sequence[Variant],
    clock: Clock,
) -> dict[Variant, float]:
    """Serve once per variant, in `order`; seconds by variant."""
    return {variant: serve(loaded, settings, tokens, requests, variant.observers(folder), clock) for variant in order}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(prog="python -m divtrace.bench", description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--policy", default="threshold:4")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for machines with other work")
    parser.add_argument("--hash", nargs="+", choices=(HASH_NAME, GRAPH_HASH_NAME), help="hashes for level kv")
    chosen = parser.parse_args(arguments)
    clock: Clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    loaded = load_shared(resolve_model(chosen.model), chosen.dtype)
    settings = EngineSettings(policy=chosen.policy, max_active=chosen.requests)
    measured = variants(chosen.hash or (None,))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one_round(loaded, settings, 4, chosen.requests, folder, measured, clock)
        rounds = []
        for number in range(chosen.rounds):
            shift = number % len(measured)
            order = measured[shift:] + measured[:shift]
            rounds.append(one_round(loaded, settings, chosen.tokens, chosen.requests, folder, order, clock))
        print(
            f"{chosen.policy}, {chosen.dtype}, {chosen.requests} requests of {chosen.tokens} tokens, "
            f"{chosen.rounds} rounds, {chosen.clock} time, on {mx.default_device()}"
        )
        for variant in measured:
            print(_line(variant, rounds, measured[0], folder), flush=True)


def _line(variant: Variant, rounds: Sequence[Mapping[Variant, float]], off: Variant, folder: Path) -> str:
    ratios = [seconds[variant] / seconds[off] for seconds in rounds]
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    size = "" if variant.level is None else _size(variant.trace_path(folder))
    return f"{variant!s:18s} {statistics.median(ratios):.3f} times without ({spread}){size}"


def _size(path: Path) -> str:
    with open_trace(path) as trace:
        rows = trace.length("rows")
        hashed = f", {trace.header.hash_name}" if trace.header.level.includes(Level.KV) else ""
    return f", {path.stat().st_size / rows:.0f} bytes a row over {rows} rows{hashed}"


if __name__ == "__main__":
    main()
