"""Models and requests that planted pairs are made of; everything follows from a seed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np

from engine.model.load import LoadedModel
from engine.model.weights_hash import weights_hash
from engine.request import Arrival, Request, SamplingParams
from fixtures.tiny_models import tiny_model

VICTIM, NEIGHBOUR = "victim", "neighbour"


@cache
def model(name: str) -> LoadedModel:
    """A tiny model by name: its architecture, layers and width."""
    match name:
        case "llama-2":
            return tiny_model("llama")
        case "llama-4":
            return tiny_model("llama", layers=4, hidden_size=96, seed=3)
        case "qwen3-3":
            return tiny_model("qwen3", layers=3, hidden_size=96, seed=1)
        case "qwen2-q4":
            return tiny_model("qwen2", quantized=True, seed=2)
        case "llama-2-other":
            return tiny_model("llama", seed=77)
        case "ties":
            return _with_ties(tiny_model("llama", seed=5))
        case "smollm2":
            from divtrace.model_store import fetch_smollm2
            from engine.model.load import load_model

            return load_model(fetch_smollm2())
    raise KeyError(name)


TINY = ("llama-2", "qwen3-3", "qwen2-q4", "llama-4")


def layers_of(name: str) -> int:
    """Layers of a model."""
    return model(name).layers


def prompt(seed: int, length: int, salt: int = 0, vocabulary: int = 256) -> tuple[int, ...]:
    """Token ids drawn from a seed."""
    drawn = np.random.default_rng((seed, salt, length)).integers(0, vocabulary, length)
    return tuple(int(token) for token in drawn)


def repetitive_prompt(seed: int, length: int, period: int = 5) -> tuple[int, ...]:
    """A phrase over and over, which prompt lookup likes to continue."""
    phrase = prompt(seed, period, 9)
    return tuple(phrase[i % period] for i in range(length))


def victim(
    seed: int, rows: int = 20, tokens: int = 40, sampling: SamplingParams | None = None, salt: int = 0
) -> Request:
    """The request that is to be blamed for."""
    return Request(VICTIM, prompt(seed, rows, salt), tokens, sampling or SamplingParams(), ignore_eos=True)


def neighbour(
    seed: int, rows: int = 12, tokens: int = 8, after: int = 3, sampling: SamplingParams | None = None
) -> Request:
    """A request that joins once the victim has some tokens."""
    return Request(
        NEIGHBOUR,
        prompt(seed, rows, 1),
        tokens,
        sampling or SamplingParams(),
        ignore_eos=True,
        arrival=Arrival(0, VICTIM, after),
    )


def with_prompt(request: Request, tokens: tuple[int, ...]) -> Request:
    """The same request with another prompt."""
    return replace(request, prompt=tokens)


def _with_ties(loaded: LoadedModel) -> LoadedModel:
    """Every odd token's output row equals the one before it, so that the two logits are equal bit for bit."""
    weight = np.array(loaded.model.lm_head.weight)
    weight[1::2] = weight[::2]
    loaded.model.lm_head.weight = mx.array(weight)
    return replace(loaded, weights_hash=weights_hash(loaded.model))
