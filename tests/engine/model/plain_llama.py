"""A llama in plain numpy, float64, straight from a GGUF file: an independent forward to hold the loader against.

It reads with the format's own package and rotates pairs as llama.cpp does, so it shares nothing with the engine.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

FloatArray = npt.NDArray[np.float64]


class PlainLlama:
    """Holds the whole file dequantized; `logits` runs every token of one text, uncached."""

    def __init__(self, path: Path) -> None:
        reader = gguf.GGUFReader(path)
        self._weights = {t.name: dequantize(t.data, t.tensor_type) for t in reader.tensors}
        self._fields = reader.fields
        self._heads = int(self._field("attention.head_count"))
        self._kv_heads = int(self._field("attention.head_count_kv"))
        self._epsilon = float(self._field("attention.layer_norm_rms_epsilon"))
        self._base = float(self._field("rope.freq_base"))

    def logits(self, tokens: list[int]) -> FloatArray:
        """Float64, shape (len(tokens), vocabulary)."""
        hidden = self._weights["token_embd.weight"][tokens].astype(np.float64)
        for layer in range(int(self._field("block_count"))):
            block = f"blk.{layer}."
            hidden = hidden + self._attention(block, self._norm(hidden, block + "attn_norm.weight"))
            hidden = hidden + self._mlp(block, self._norm(hidden, block + "ffn_norm.weight"))
        head = "output.weight" if "output.weight" in self._weights else "token_embd.weight"
        return self._norm(hidden, "output_norm.weight") @ self._weight(head).T

    def _field(self, key: str) -> Any:
        return self._fields[f"llama.{key}"].contents()

    def _weight(self, name: str) -> FloatArray:
        return self._weights[name].astype(np.float64)

    def _norm(self, hidden: FloatArray, name: str) -> FloatArray:
        mean_square = (hidden**2).mean(axis=-1, keepdims=True)
        return hidden / np.sqrt(mean_square + self._epsilon) * self._weight(name)

    def _mlp(self, block: str, hidden: FloatArray) -> FloatArray:
        gate = hidden @ self._weight(block + "ffn_gate.weight").T
        up = hidden @ self._weight(block + "ffn_up.weight").T
        return (gate / (1.0 + np.exp(-gate)) * up) @ self._weight(block + "ffn_down.weight").T

    def _attention(self, block: str, hidden: FloatArray) -> FloatArray:
        rows = len(hidden)
        queries, keys, values = (
            (hidden @ self._weight(f"{block}attn_{part}.weight").T).reshape(rows, heads, -1)
            for part, heads in (("q", self._heads), ("k", self._kv_heads), ("v", self._kv_heads))
        )
        queries, keys = self._rotate(queries), self._rotate(keys)
        shared = self._heads // self._kv_heads
        keys, values = keys.repeat(shared, axis=1), values.repeat(shared, axis=1)
        scores = np.einsum("qhd,khd->hqk", queries, keys) / np.sqrt(queries.shape[-1])
        scores = np.where(np.tril(np.ones((rows, rows), bool)), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weights, values).reshape(rows, -1)
        return mixed @ self._weight(block + "attn_output.weight").T

    def _rotate(self, vectors: FloatArray) -> FloatArray:
        rows, _, size = vectors.shape
        angles = np.arange(rows)[:, None] * self._base ** (-np.arange(0, size, 2) / size)
        pairs = vectors[..., 0::2] + 1j * vectors[..., 1::2]
        turned = pairs * np.exp(1j * angles)[:, None, :]
        return np.stack([turned.real, turned.imag], axis=-1).reshape(vectors.shape)
