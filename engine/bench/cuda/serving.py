"""A mixed workload under several kernel policies, interleaved: `python -m engine.bench.cuda.serving`.

Requests arrive one after another, so that prefills join decoding rows. Each round serves them once per policy, in an
order that rotates; the ratio to the first policy is taken within a round, and its median over rounds is printed.
Without --model it is a model of random weights in Qwen2.5-7B's shapes. Only ratios of one run mean anything.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import click
import mlx.core as mx
import numpy as np

from engine.bench.cuda.large_model import large_model
from engine.engine import Engine
from engine.model.load import LoadedModel, load_model
from engine.request import Request
from engine.settings import EngineSettings

ARRIVAL_EVERY_STEPS = 8


def mixed_requests(vocabulary: int, requests: int, prompt_tokens: int, output_tokens: int) -> list[Request]:
    """Random prompts of one length."""
    random = np.random.default_rng(0)
    prompts = random.integers(0, min(vocabulary, 30_000), (requests, prompt_tokens))
    return [
        Request(f"r{index}", tuple(int(token) for token in prompt), output_tokens, ignore_eos=True)
        for index, prompt in enumerate(prompts)
    ]


def serve(loaded: LoadedModel, policy: str, requests: Sequence[Request]) -> float:
    """Seconds to serve them all; one request joins every few steps."""
    waiting = list(requests)
    with Engine(loaded, EngineSettings(policy=policy, max_active=len(requests))) as engine:
        started = time.perf_counter()
        steps = 0
        while True:
            if waiting and steps % ARRIVAL_EVERY_STEPS == 0:
                engine.submit(waiting.pop(0))
            steps += 1
            if not engine.step() and not waiting:
                break
        return time.perf_counter() - started


@click.command()
@click.option("--model", help="A GGUF file, directory or hub id; left out: random weights in Qwen2.5-7B's shapes.")
@click.option("--dtype", default="float16", show_default=True)
@click.option(
    "--policies", default="native,gemv,invariant", show_default=True, help="The first is what others are held to."
)
@click.option("--requests", default=8, show_default=True)
@click.option("--prompt-tokens", default=128, show_default=True)
@click.option("--output-tokens", default=128, show_default=True)
@click.option("--rounds", default=5, show_default=True)
def main(
    model: str | None, dtype: str, policies: str, requests: int, prompt_tokens: int, output_tokens: int, rounds: int
) -> None:
    """Serve and print the ratios."""
    loaded = load_model(model, dtype) if model else large_model(dtype)
    names = policies.split(",")
    made = mixed_requests(loaded.vocabulary_size, requests, prompt_tokens, output_tokens)
    for name in names:
        serve(loaded, name, mixed_requests(loaded.vocabulary_size, requests, prompt_tokens, 24))
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            times[name].append(serve(loaded, name, made))
    click.echo(
        f"{loaded.source}, {dtype}, {requests} requests, {prompt_tokens} in, {output_tokens} out, {rounds} rounds, on"
        f" {mx.default_device()}"
    )
    for name in names:
        ratios = [own / first for own, first in zip(times[name], times[names[0]], strict=True)]
        click.echo(
            f"{name:12s} {statistics.median(times[name]):.3f} s, {statistics.median(ratios):.3f} times {names[0]}"
            f" ({min(ratios):.3f} to {max(ratios):.3f})"
        )


if __name__ == "__main__":
    main()
