"""What recording costs: `python -m divtrace.bench`. Paired and interleaved in one run; ratios count, not seconds.

Each round serves the same requests once per level and once without an observer, in an order that rotates. The table
gives the median over rounds of (time at this level) / (time without an observer in the same round), and bytes per
row on disk.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from divtrace.recorder.recorder import Recorder
from divtrace.recording import load_shared, resolve_model
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from engine.engine import Engine
from engine.model.load import LoadedModel
from engine.observer import Observer
from engine.request import Request
from engine.settings import EngineSettings
from fixtures.prompts import ANCHORS

Clock = Callable[[], float]
VARIANTS = ("off", "tokens", "logits", "kv")


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
    order: Sequence[str],
    clock: Clock,
) -> dict[str, float]:
    """Serve once per variant, in `order`; seconds by variant."""
    seconds = {}
    for variant in order:
        path = folder / f"{variant}.h5"
        observers = () if variant == "off" else (Recorder(path, Level(variant), overwrite=True),)
        seconds[variant] = serve(loaded, settings, tokens, requests, observers, clock)
    return seconds


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
    chosen = parser.parse_args(arguments)
    clock: Clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    loaded = load_shared(resolve_model(chosen.model), chosen.dtype)
    settings = EngineSettings(policy=chosen.policy, max_active=chosen.requests)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one_round(loaded, settings, 4, chosen.requests, folder, VARIANTS, clock)
        rounds = []
        for number in range(chosen.rounds):
            shift = number % len(VARIANTS)
            order = VARIANTS[shift:] + VARIANTS[:shift]
            rounds.append(one_round(loaded, settings, chosen.tokens, chosen.requests, folder, order, clock))
        print(
            f"{chosen.policy}, {chosen.dtype}, {chosen.requests} requests of {chosen.tokens} tokens, "
            f"{chosen.rounds} rounds"
        )
        for variant in VARIANTS:
            ratios = [r[variant] / r["off"] for r in rounds]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            print(
                f"{variant:8s} {statistics.median(ratios):.3f} times without ({spread}){_size(folder, variant)}",
                flush=True,
            )


def _size(folder: Path, variant: str) -> str:
    if variant == "off":
        return ""
    path = folder / f"{variant}.h5"
    with open_trace(path) as trace:
        rows = trace.length("rows")
    return f", {path.stat().st_size / rows:.0f} bytes a row over {rows} rows"


if __name__ == "__main__":
    main()
