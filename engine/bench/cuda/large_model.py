"""A model in the shapes of Qwen2.5-7B with random weights, packed on the spot: real sizes for speed, no real text."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import qwen2

from engine.model.load import DTYPES, LoadedModel, model_configuration

LAYERS = 28
VOCABULARY = 152_064


def large_model(dtype: str = "float16", *, bits: int = 4, group_size: int = 64, layers: int = LAYERS) -> LoadedModel:
    """Qwen2.5-7B's configuration (its config.json on the hub), random weights of `bits` in groups of `group_size`.

    Layers are packed one by one, so that the dense model is never in memory.
    """
    from fixtures.tiny_models import ByteTokenizer  # part of the source tree, not of an installed package

    arguments = qwen2.ModelArgs(
        model_type="qwen2",
        hidden_size=3584,
        num_hidden_layers=layers,
        intermediate_size=18_944,
        num_attention_heads=28,
        num_key_value_heads=4,
        rms_norm_eps=1e-6,
        vocab_size=VOCABULARY,
        rope_theta=1_000_000.0,
        tie_word_embeddings=False,
    )
    mx.random.seed(0)
    model = qwen2.Model(arguments)
    model.set_dtype(DTYPES[dtype])
    parts = [*model.model.layers, model.model, model]
    for part in parts:
        nn.quantize(part, group_size, bits)
        mx.eval(part.parameters())
    tokenizer = ByteTokenizer()
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        architecture="qwen2",
        source="random weights in Qwen2.5-7B's shapes",
        weights_hash="random",
        tokenizer_hash=tokenizer.hash,
        dtype=dtype,
        layers=layers,
        kv_heads=4,
        head_size=128,
        vocabulary_size=VOCABULARY,
        quantization=f"affine {bits}/{group_size}",
        configuration=model_configuration(model),
    )
