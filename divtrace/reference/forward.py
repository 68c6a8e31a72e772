"""A forward of llama, qwen2 and qwen3 in numpy float64, uncached, from the weights of a loaded model.

Of MLX it takes nothing but the weights (dequantized, as the dense kernels of both runs see them), so a fault of a
kernel, of batching or of K/V memory cannot be in it. One layer's weights are widened at a time. Must not know traces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from divtrace.errors import EvidenceError
from divtrace.reference.rope import Float64, Rotation, frequencies
from engine.kernels.site import LinearSite
from engine.model.load import LoadedModel

ARCHITECTURES = ("llama", "qwen2", "qwen3")
HEAD_ROWS_AT_ONCE = 8192


class ReferenceModel:
    """The float64 twin of a loaded model.

    Raises:
        EvidenceError: the architecture, or something in its configuration, has no float64 reference here.
    """

    def __init__(self, loaded: LoadedModel) -> None:
        arguments = getattr(loaded.model, "args", None)
        if loaded.architecture not in ARCHITECTURES or arguments is None:
            raise EvidenceError(
                f"architecture {loaded.architecture!r} has no float64 reference; {', '.join(ARCHITECTURES)} have."
            )
        if "sliding_attention" in (getattr(arguments, "layer_types", None) or ()):
            raise EvidenceError("layers with a sliding attention window have no float64 reference.")
        self._model: Any = loaded.model
        self._arguments = arguments
        self._heads = int(arguments.num_attention_heads)
        self._kv_heads = int(arguments.num_key_value_heads)
        self._head_size = loaded.head_size
        self._rotation = Rotation(
            frequencies(self._head_size, float(arguments.rope_theta), arguments.rope_scaling),
            bool(getattr(arguments, "rope_traditional", False)),
        )

    def logits(self, tokens: Sequence[int]) -> Float64:
        """Logits behind the last of `tokens`, float64 (vocabulary,)."""
        body = self._model.model
        hidden = _widened(body.embed_tokens(mx.array(list(tokens))))
        for layer in body.layers:
            hidden = hidden + self._attention(layer.self_attn, self._norm(layer.input_layernorm, hidden))
            hidden = hidden + _mlp(layer.mlp, self._norm(layer.post_attention_layernorm, hidden))
        last = self._norm(body.norm, hidden[-1:])[0]
        head = body.embed_tokens if self._arguments.tie_word_embeddings else self._model.lm_head
        return _head_logits(head, last)

    def _attention(self, attention: Any, hidden: Float64) -> Float64:
        rows = len(hidden)
        queries, keys, values = (
            _linear(leaf, hidden).reshape(rows, heads, self._head_size)
            for leaf, heads in (
                (attention.q_proj, self._heads),
                (attention.k_proj, self._kv_heads),
                (attention.v_proj, self._kv_heads),
            )
        )
        if "q_norm" in attention:
            queries, keys = self._norm(attention.q_norm, queries), self._norm(attention.k_norm, keys)
        queries, keys = self._rotation.turn(queries), self._rotation.turn(keys)
        shared = self._heads // self._kv_heads
        mixed = np.empty((rows, self._heads, self._head_size))
        for head in range(self._heads):
            mixed[:, head] = _attend(queries[:, head], keys[:, head // shared], values[:, head // shared])
        return _linear(attention.o_proj, mixed.reshape(rows, -1))

    def _norm(self, norm: Any, hidden: Float64) -> Float64:
        mean_square = np.mean(hidden * hidden, axis=-1, keepdims=True)
        return hidden / np.sqrt(mean_square + float(norm.eps)) * _widened(norm.weight)


def _attend(queries: Float64, keys: Float64, values: Float64) -> Float64:
    """Causal attention of one head, each (rows, head_size)."""
    scores = queries @ keys.T / np.sqrt(queries.shape[-1])
    scores[np.triu_indices(len(scores), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed: Float64 = (weights / weights.sum(axis=-1, keepdims=True)) @ values
    return mixed


def _mlp(mlp: Any, hidden: Float64) -> Float64:
    gate = _linear(mlp.gate_proj, hidden)
    return _linear(mlp.down_proj, gate / (1.0 + np.exp(-gate)) * _linear(mlp.up_proj, hidden))


def _linear(leaf: Any, hidden: Float64) -> Float64:
    out: Float64 = hidden @ _widened(_site(leaf).dequantized()).T
    return out + _widened(leaf.bias) if "bias" in leaf else out


def _head_logits(leaf: Any, last: Float64) -> Float64:
    """A vocabulary is large: its weights are widened in parts."""
    weight = np.array(_site(leaf).dequantized().astype(mx.float32))
    parts = [
        weight[start : start + HEAD_ROWS_AT_ONCE].astype(np.float64) @ last
        for start in range(0, len(weight), HEAD_ROWS_AT_ONCE)
    ]
    logits: Float64 = np.concatenate(parts)
    return logits + _widened(leaf.bias) if "bias" in leaf else logits


def _site(leaf: Any) -> LinearSite:
    return LinearSite("reference", leaf, lambda x: x)


def _widened(array: mx.array) -> Float64:
    # Every dtype of a weight widens to float32 without rounding, and numpy lacks bfloat16.
    return np.array(array.astype(mx.float32)).astype(np.float64)
