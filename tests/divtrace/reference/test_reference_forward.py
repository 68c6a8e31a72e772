"""The float64 forward is the model: it agrees with mlx-lm, and with another float64 forward far more closely."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from divtrace.errors import EvidenceError
from divtrace.reference.forward import ReferenceModel
from divtrace.reference.rope import Rotation, frequencies
from engine.model.load import LoadedModel, load_model
from fixtures.tiny_gguf import write_tiny_gguf
from fixtures.tiny_models import tiny_model
from tests.engine.model.plain_llama import PlainLlama

TOKENS = [5, 99, 3, 250, 17, 17, 80, 1, 64, 200, 31]


def plain_logits(loaded: LoadedModel) -> np.ndarray[Any, Any]:
    return np.array(loaded.model(mx.array([TOKENS]))[0, -1].astype(mx.float32))


CASES: list[dict[str, Any]] = [
    {"architecture": "llama"},
    {"architecture": "llama", "quantized": True},
    {"architecture": "llama", "quantized": True, "bits": 8, "tied_embeddings": True},
    {"architecture": "llama", "attention_bias": True, "mlp_bias": True},
    {"architecture": "llama", "rope_traditional": True},
    {"architecture": "llama", "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    {
        "architecture": "llama",
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    {"architecture": "qwen2"},
    {"architecture": "qwen2", "quantized": True, "tied_embeddings": True},
    {"architecture": "qwen3"},
    {"architecture": "qwen3", "quantized": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_it_is_the_model_up_to_float32_rounding(case: dict[str, Any]) -> None:
    loaded = tiny_model(**case, seed=3)
    plain, reference = plain_logits(loaded), ReferenceModel(loaded).logits(TOKENS)
    assert reference.dtype == np.float64
    assert np.abs(reference - plain).max() < 2e-5 * np.abs(plain).max()


def test_two_float64_forwards_agree_far_below_float32(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny_gguf(path, "llama", storage="F32")
    independent = PlainLlama(path).logits(TOKENS)[-1]
    reference = ReferenceModel(load_model(path)).logits(TOKENS)
    assert np.abs(reference - independent).max() < 1e-9 * np.abs(independent).max()


def test_a_wrong_position_would_be_seen() -> None:
    """The tolerance above can fail: one token swapped moves the logits by far more."""
    loaded = tiny_model("llama", seed=3)
    moved = ReferenceModel(loaded).logits([TOKENS[1], TOKENS[0], *TOKENS[2:]])
    assert np.abs(moved - plain_logits(loaded)).max() > 1e-3


@pytest.mark.parametrize("traditional", [False, True])
def test_a_rotation_keeps_lengths_and_depends_on_distance_alone(traditional: bool) -> None:
    rotation = Rotation(frequencies(8, 10000.0, None), traditional)
    vector = np.random.default_rng(0).standard_normal((1, 1, 8)).repeat(6, axis=0)
    turned = rotation.turn(vector)[:, 0]
    assert np.allclose(np.linalg.norm(turned, axis=-1), np.linalg.norm(vector[:, 0], axis=-1))
    products = turned @ turned.T
    assert np.allclose(np.diagonal(products, 2), products[0, 2])
    assert np.array_equal(turned[0], vector[0, 0])


@pytest.mark.parametrize(
    ("loaded", "words"),
    [
        (replace(tiny_model("llama"), architecture="gemma"), "gemma"),
        (tiny_model("llama", layer_types=["full_attention", "sliding_attention"], sliding_window=8), "sliding"),
    ],
)
def test_what_has_no_reference_is_refused_in_one_sentence(loaded: LoadedModel, words: str) -> None:
    with pytest.raises(EvidenceError, match=words):
        ReferenceModel(loaded)


def test_a_rotary_scaling_that_is_not_known_is_refused() -> None:
    with pytest.raises(EvidenceError, match="yarn"):
        frequencies(8, 10000.0, {"rope_type": "yarn", "factor": 4.0})
