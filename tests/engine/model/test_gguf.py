"""A GGUF file becomes the mlx-lm model that it describes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from divtrace.model_store import fetch_smollm2
from engine.errors import EngineError, UnsupportedModelError
from engine.model.load import load_model
from fixtures.tiny_gguf import write_tiny_gguf
from tests.engine.model.plain_llama import PlainLlama

TOKENS = [72, 101, 108, 108, 111, 32, 200, 0, 255, 7, 7]


def logits_of(model: nn.Module, tokens: list[int]) -> np.ndarray:
    return np.array(model(mx.array([tokens]))[0].astype(mx.float32))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_a_dense_qwen_file_gives_the_very_bits_of_its_model(tmp_path: Path, architecture: str, tied: bool) -> None:
    written = write_tiny_gguf(tmp_path / "m.gguf", architecture, tied_embeddings=tied)
    loaded = load_model(written.path)
    assert loaded.weights_hash == written.original.weights_hash
    assert logits_of(loaded.model, TOKENS).tobytes() == logits_of(written.original.model, TOKENS).tobytes()


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("storage", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_each_storage_type_means_what_the_formats_own_decoder_says(
    tmp_path: Path, architecture: str, storage: str
) -> None:
    written = write_tiny_gguf(tmp_path / "m.gguf", architecture, storage=storage, seed=3)
    loaded = load_model(written.path)
    expected = logits_of(written.rounded.model, TOKENS)
    np.testing.assert_allclose(logits_of(loaded.model, TOKENS), expected, atol=2e-4, rtol=0)


@pytest.mark.parametrize("storage", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_a_llama_file_gives_the_logits_of_an_independent_forward(tmp_path: Path, storage: str) -> None:
    path = write_tiny_gguf(tmp_path / "m.gguf", storage=storage, seed=6).path
    expected = PlainLlama(path).logits(TOKENS * 3)
    np.testing.assert_allclose(logits_of(load_model(path).model, TOKENS * 3), expected, atol=2e-4, rtol=0)


@pytest.mark.model
def test_smollm2_gives_the_logits_of_an_independent_forward() -> None:
    loaded = load_model(fetch_smollm2())
    tokens = loaded.tokenizer.encode("In 1492, Columbus")
    expected = PlainLlama(fetch_smollm2()).logits(tokens)
    logits = logits_of(loaded.model, tokens)
    np.testing.assert_allclose(logits, expected, atol=5e-4, rtol=0)
    assert (logits.argmax(axis=-1) == expected.argmax(axis=-1)).all()


def test_a_packed_file_stays_packed(tmp_path: Path) -> None:
    loaded = load_model(write_tiny_gguf(tmp_path / "m.gguf", storage="Q4_1").path)
    packed = [m for m in loaded.model.modules() if isinstance(m, nn.QuantizedLinear | nn.QuantizedEmbedding)]
    assert len(packed) == 2 * 7 + 2
    assert {(module.bits, module.group_size) for module in packed} == {(4, 32)}
    assert loaded.quantization == "GGUF Q4_1x16"


def test_what_a_trace_needs_to_know_is_read_from_the_file(tmp_path: Path) -> None:
    written = write_tiny_gguf(tmp_path / "m.gguf", "qwen3", layers=3, heads=8, kv_heads=2)
    loaded = load_model(str(written.path), "float16")
    assert (loaded.layers, loaded.kv_heads, loaded.head_size, loaded.vocabulary_size) == (3, 2, 8, 257)
    assert (loaded.architecture, loaded.dtype, loaded.source) == ("qwen3", "float16", str(written.path))
    assert loaded.model.layers[0].self_attn.q_proj.weight.dtype == mx.float16


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
def test_linear_rope_scaling_is_followed(tmp_path: Path, architecture: str) -> None:
    scaling = {f"{architecture}.rope.scaling.type": "linear", f"{architecture}.rope.scaling.factor": 4.0}
    written = write_tiny_gguf(
        tmp_path / "m.gguf", architecture, metadata=scaling, rope_scaling={"type": "linear", "factor": 4.0}
    )
    expected = logits_of(written.original.model, TOKENS)
    np.testing.assert_allclose(logits_of(load_model(written.path).model, TOKENS), expected, atol=2e-4, rtol=0)


def test_the_rope_factors_of_a_llama_3_file_are_followed(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    head_size, base = 16, 10000.0
    plain = write_tiny_gguf(tmp_path / "plain.gguf", rope_scaling=scaling)
    inverse = np.array(plain.original.model.layers[0].self_attn.rope._freqs)
    factors = (inverse / base ** (np.arange(0, head_size, 2) / head_size)).astype(np.float32)
    assert factors.max() == pytest.approx(8.0)
    assert factors.min() == pytest.approx(1.0)
    written = write_tiny_gguf(tmp_path / "m.gguf", rope_scaling=scaling, extra_tensors={"rope_freqs.weight": factors})
    tokens = TOKENS * 8
    expected = logits_of(written.original.model, tokens)
    np.testing.assert_allclose(logits_of(load_model(written.path).model, tokens), expected, atol=5e-4, rtol=0)
    without = logits_of(load_model(plain.path).model, tokens)
    assert np.abs(without - expected).max() > 0.1


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.dimension_count": 8}, "rotates only a part"),
        ({"llama.attention.value_length": 32}, "differ in size"),
        ({"llama.attention.sliding_window": 4096}, "sliding window"),
        ({"llama.rope.scaling.type": "yarn"}, "rotary scaling 'yarn'"),
    ],
)
def test_a_feature_that_is_not_run_is_refused_by_name(tmp_path: Path, metadata: dict[str, Any], reason: str) -> None:
    written = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(UnsupportedModelError, match=reason):
        load_model(written.path)


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"llama.block_count": 2**31 - 1}, "2 layers and its metadata claims 2147483647"),
        ({"llama.block_count": 0}, "'llama.block_count' is 0"),
        ({"llama.block_count": "two"}, "'llama.block_count' must be one whole number"),
        ({"llama.embedding_length": 2**30}, "token_embd.weight"),
        ({"llama.feed_forward_length": 2**30}, "ffn_gate"),
        ({"llama.attention.head_count": 64}, "attn_q"),
        ({"llama.attention.head_count_kv": 4}, "attn_k"),
        ({"llama.rope.freq_base": float("nan")}, "freq_base' is nan"),
        ({"llama.attention.layer_norm_rms_epsilon": -1.0}, "epsilon' is -1.0"),
        ({"llama.rope.scaling.type": "linear"}, "scaling.factor' must be one number and is missing"),
    ],
)
def test_metadata_that_no_tensor_backs_is_refused(tmp_path: Path, metadata: dict[str, Any], reason: str) -> None:
    written = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(EngineError, match=reason):
        load_model(written.path)


def test_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    written = write_tiny_gguf(tmp_path / "m.gguf", metadata={"general.architecture": "mamba"})
    with pytest.raises(UnsupportedModelError, match="architecture 'mamba' is not supported"):
        load_model(written.path)


def test_a_tensor_without_a_place_is_refused_by_name(tmp_path: Path) -> None:
    extra = {"blk.0.ssm_a": np.zeros(4, np.float32)}
    written = write_tiny_gguf(tmp_path / "m.gguf", extra_tensors=extra)
    with pytest.raises(UnsupportedModelError, match=r"'blk\.0\.ssm_a' has no place"):
        load_model(written.path)


def test_biases_that_a_llama_does_not_have_are_refused(tmp_path: Path) -> None:
    extra = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    written = write_tiny_gguf(tmp_path / "m.gguf", extra_tensors=extra)
    with pytest.raises(EngineError, match="do not make a llama model"):
        load_model(written.path)


@pytest.mark.parametrize("storage", ["Q5_0", "Q6_K", "BF16"])
def test_a_storage_type_that_is_not_read_is_refused_by_name(tmp_path: Path, storage: str) -> None:
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 256, "layers": 1}
    if storage == "Q6_K":
        # The format's own package does not encode this type; the type's number is enough here.
        written = write_tiny_gguf(tmp_path / "m.gguf", storage="Q8_0", **sizes)
        raw = bytearray(written.path.read_bytes())
        at = raw.index(b"blk.0.ffn_up.weight") + len(b"blk.0.ffn_up.weight") + 4 + 2 * 8
        raw[at : at + 4] = (14).to_bytes(4, "little")
        written.path.write_bytes(raw)
    else:
        written = write_tiny_gguf(tmp_path / "m.gguf", storage=storage, **sizes)
    with pytest.raises(EngineError, match=f"has type {storage}, and only F32, F16, Q4_0, Q4_1, Q8_0"):
        load_model(written.path)
