"""What a GGUF file's metadata says of its model, as the arguments of mlx-lm's classes.

Owns the refusal of features that are not run here. Must not know weights: it sees names and shapes only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.errors import EngineError, UnsupportedModelError
from engine.model.gguf_header import GgufHeader

ROPE_FACTORS = "rope_freqs.weight"
"""Name of the tensor by whose values a Llama 3 file divides its rotary frequencies."""


def model_arguments(header: GgufHeader, architecture: str) -> dict[str, Any]:
    """Arguments of mlx-lm's `ModelArgs` for `architecture`, checked against the shapes of the file's tensors.

    Raises UnsupportedModelError for a feature that is not run here, EngineError for claims that do not fit.
    """
    prefix = f"{architecture}."
    hidden_size = _positive(header, prefix + "embedding_length")
    heads = _positive(header, prefix + "attention.head_count")
    arguments: dict[str, Any] = {
        "model_type": architecture,
        "hidden_size": hidden_size,
        "num_hidden_layers": _positive(header, prefix + "block_count"),
        "intermediate_size": _positive(header, prefix + "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _positive(header, prefix + "attention.head_count_kv", heads),
        "head_dim": _positive(header, prefix + "attention.key_length", hidden_size // heads),
        "rms_norm_eps": _positive_number(header, prefix + "attention.layer_norm_rms_epsilon"),
        "vocab_size": _vocabulary_size(header),
        "max_position_embeddings": _positive(header, prefix + "context_length"),
        "rope_theta": _positive_number(header, prefix + "rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(header, prefix),
        "tie_word_embeddings": not _holds(header, "output.weight"),
    }
    _refuse_unsupported(header, prefix, arguments)
    _check_shapes(header, arguments)
    if architecture == "llama":
        arguments["rope_traditional"] = True
    return arguments


def _holds(header: GgufHeader, name: str) -> bool:
    return any(info.name == name for info in header.tensors)


def _positive(header: GgufHeader, key: str, default: int | None = None) -> int:
    value = header.integer(key, default)
    if not 0 < value < 2**31:
        raise EngineError(f"{header.path}: metadata key '{key}' is {value}, which no model can have")
    return value


def _positive_number(header: GgufHeader, key: str, default: float | None = None) -> float:
    value = header.number(key, default)
    if not 0.0 < value < float("inf"):
        raise EngineError(f"{header.path}: metadata key '{key}' is {value}, which no model can have")
    return value


def _vocabulary_size(header: GgufHeader) -> int:
    for info in header.tensors:
        if info.name == "token_embd.weight" and len(info.shape) == 2:
            return info.shape[0]
    raise EngineError(f"{header.path}: tensor 'token_embd.weight' is missing; this is no whole language model")


def _rope_scaling(header: GgufHeader, prefix: str) -> dict[str, Any] | None:
    kind = header.text(prefix + "rope.scaling.type", "none")
    factors = _holds(header, ROPE_FACTORS)
    if factors and kind == "none" and prefix == "llama.":
        # The class for Llama 3 takes one frequency for each pair; the file's own factors replace these.
        return {"rope_type": "llama3", "factor": 1.0}
    if kind == "none" and not factors:
        return None
    if kind == "linear" and not factors:
        return {"type": "linear", "factor": _positive_number(header, prefix + "rope.scaling.factor")}
    raise UnsupportedModelError(
        f"{header.path}: rotary scaling '{kind}' is not supported in GGUF files (only none and linear); "
        "use the model's mlx-lm directory instead"
    )


def _refuse_unsupported(header: GgufHeader, prefix: str, arguments: Mapping[str, Any]) -> None:
    head_size = arguments["head_dim"]
    reasons = {
        "it is a mixture of experts": header.integer(prefix + "expert_count", 0) > 0,
        "it rotates only a part of each head": header.integer(prefix + "rope.dimension_count", head_size) != head_size,
        "its keys and values differ in size": header.integer(prefix + "attention.value_length", head_size) != head_size,
        "it attends in a sliding window": header.integer(prefix + "attention.sliding_window", 0) > 0,
        "its head size is odd": head_size % 2 == 1,
        "its heads do not share keys evenly": arguments["num_attention_heads"] % arguments["num_key_value_heads"] != 0,
        "its head size is not hidden size over heads": prefix == "qwen2."
        and head_size * arguments["num_attention_heads"] != arguments["hidden_size"],
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(
                f"{header.path}: this GGUF model cannot be run: {reason}; use its mlx-lm directory instead"
            )


def _check_shapes(header: GgufHeader, arguments: Mapping[str, Any]) -> None:
    """Hold the metadata against the tensors, so that no claim can ask for memory that no file backs."""
    hidden_size, head_size = arguments["hidden_size"], arguments["head_dim"]
    expected = {
        "token_embd.weight": (arguments["vocab_size"], hidden_size),
        "blk.0.attn_q.weight": (arguments["num_attention_heads"] * head_size, hidden_size),
        "blk.0.attn_k.weight": (arguments["num_key_value_heads"] * head_size, hidden_size),
        "blk.0.ffn_gate.weight": (arguments["intermediate_size"], hidden_size),
    }
    shapes = {info.name: info.shape for info in header.tensors}
    for name, shape in expected.items():
        if shapes.get(name) != shape:
            raise EngineError(
                f"{header.path}: tensor '{name}' is {shapes.get(name, 'missing')} and must be {shape} by the "
                "file's metadata; get the file again"
            )
    blocks = {name.split(".")[1] for name in shapes if name.startswith("blk.")}
    if len(blocks) != arguments["num_hidden_layers"]:
        raise EngineError(
            f"{header.path}: it holds tensors of {len(blocks)} layers and its metadata claims "
            f"{arguments['num_hidden_layers']}; get the file again"
        )
