"""Builds an mlx-lm model from a GGUF file. Owns the names and layouts of GGUF tensors.

Must not know tokenizers. Source of the names: the GGUF specification and llama.cpp's converter, which stores
the q and k rows of `llama` models in the interleaved order of rotary embedding (`traditional`), and those of
`qwen2` and `qwen3` unpermuted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.errors import EngineError, UnsupportedModelError
from engine.model.gguf_header import GgufHeader

GROUP_SIZE = 32

_LAYER_NAMES: Mapping[str, str] = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_TOP_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
ARCHITECTURES = ("llama", "qwen2", "qwen3")


@dataclass(frozen=True, slots=True)
class GgufModel:
    """An mlx-lm model with the weights of a GGUF file, and the shape of its K/V rows."""

    model: nn.Module
    layers: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    quantization: str


def build_model(header: GgufHeader, dtype: mx.Dtype) -> GgufModel:
    """The model described by `header`, its scales, biases, norms and dense weights cast to `dtype`.

    Q4_0, Q4_1 and Q8_0 stay packed, as MLX's affine format with groups of 32. Raises UnsupportedModelError
    for another architecture or a feature that is not run here, EngineError for tensors that are missing,
    superfluous or misshapen.
    """
    architecture = header.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"{header.path}: GGUF architecture '{architecture}' is not supported "
            f"(only {', '.join(ARCHITECTURES)}); use the model's mlx-lm directory instead"
        )
    arguments = _model_arguments(header, architecture)
    parameters = _read_parameters(header, dtype)
    module = import_module(f"mlx_lm.models.{architecture}")
    model = module.Model(module.ModelArgs(**arguments))
    nn.quantize(model, group_size=GROUP_SIZE, bits=4, class_predicate=_packing_of(parameters))
    try:
        model.load_weights(list(parameters.items()), strict=True)
    except ValueError as error:
        raise EngineError(
            f"{header.path}: its tensors do not make a {architecture} model: {error}"
        ) from error
    model.eval()
    mx.eval(model.parameters())
    return GgufModel(
        model=model,
        layers=arguments["num_hidden_layers"],
        kv_heads=arguments["num_key_value_heads"],
        head_size=arguments["head_dim"],
        vocabulary_size=arguments["vocab_size"],
        quantization=_describe_quantization(header),
    )


def _model_arguments(header: GgufHeader, architecture: str) -> dict[str, Any]:
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
        "rms_norm_eps": header.number(prefix + "attention.layer_norm_rms_epsilon"),
        "vocab_size": _vocabulary_size(header),
        "max_position_embeddings": _positive(header, prefix + "context_length"),
        "rope_theta": header.number(prefix + "rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(header, prefix),
        "tie_word_embeddings": not any(info.name == "output.weight" for info in header.tensors),
    }
    _refuse_unsupported(header, prefix, arguments)
    if architecture == "llama":
        arguments["rope_traditional"] = True
    if architecture == "qwen2":
        arguments.pop("head_dim")
    return arguments


def _positive(header: GgufHeader, key: str, default: int | None = None) -> int:
    value = header.integer(key, default)
    if not 0 < value < 2**31:
        raise EngineError(f"{header.path}: metadata key '{key}' is {value}, which no model can have")
    return value


def _vocabulary_size(header: GgufHeader) -> int:
    for info in header.tensors:
        if info.name == "token_embd.weight" and len(info.shape) == 2:
            return info.shape[0]
    raise EngineError(
        f"{header.path}: tensor 'token_embd.weight' is missing; this is no whole language model"
    )


def _rope_scaling(header: GgufHeader, prefix: str) -> dict[str, Any] | None:
    kind = header.text(prefix + "rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"type": "linear", "factor": header.number(prefix + "rope.scaling.factor")}
    raise UnsupportedModelError(
        f"{header.path}: rotary scaling '{kind}' is not supported in GGUF files (only none and linear); "
        "use the model's mlx-lm directory instead"
    )


def _refuse_unsupported(header: GgufHeader, prefix: str, arguments: Mapping[str, Any]) -> None:
    head_size = arguments["head_dim"]
    reasons = {
        "it is a mixture of experts": header.integer(prefix + "expert_count", 0) > 0,
        "it scales rotary frequencies one by one (rope_freqs)": any(
            info.name == "rope_freqs.weight" for info in header.tensors
        ),
        "it rotates only a part of each head": header.integer(prefix + "rope.dimension_count", head_size)
        != head_size,
        "its keys and values differ in size": header.integer(prefix + "attention.value_length", head_size)
        != head_size,
        "it attends in a sliding window": header.integer(prefix + "attention.sliding_window", 0) > 0,
        "its head size is not hidden size over heads": prefix == "qwen2."
        and head_size * arguments["num_attention_heads"] != arguments["hidden_size"],
    }
    for reason, holds in reasons.items():
        if holds:
            raise UnsupportedModelError(
                f"{header.path}: this GGUF model cannot be run: {reason}; use its mlx-lm directory instead"
            )


def _read_parameters(header: GgufHeader, dtype: mx.Dtype) -> dict[str, mx.array]:
    try:
        arrays: Any = mx.load(str(header.path), format="gguf")
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"{header.path} cannot be read: {error}") from error
    return {
        _parameter_name(header, name): array if array.dtype == mx.uint32 else array.astype(dtype)
        for name, array in arrays.items()
    }


def _parameter_name(header: GgufHeader, name: str) -> str:
    stem, _, leaf = name.rpartition(".")
    match stem.split("."):
        case ["blk", index, part] if part in _LAYER_NAMES and index.isdecimal():
            return f"model.layers.{index}.{_LAYER_NAMES[part]}.{leaf}"
        case [part] if part in _TOP_NAMES:
            return f"{_TOP_NAMES[part]}.{leaf}"
    raise UnsupportedModelError(
        f"{header.path}: tensor '{name}' has no place in this {header.text('general.architecture')} model; "
        "use the model's mlx-lm directory instead"
    )


def _packing_of(parameters: Mapping[str, mx.array]) -> Any:
    """A predicate for `nn.quantize`: which leaves are packed, and with how many bits."""

    def packing(path: str, module: nn.Module) -> bool | dict[str, int]:
        scales, packed = parameters.get(f"{path}.scales"), parameters.get(f"{path}.weight")
        if scales is None or packed is None or not hasattr(module, "to_quantized"):
            return False
        return {"group_size": GROUP_SIZE, "bits": packed.shape[-1] * 32 // (scales.shape[-1] * GROUP_SIZE)}

    return packing


def _describe_quantization(header: GgufHeader) -> str:
    counts = Counter(info.type.name for info in header.tensors if len(info.shape) > 1)
    return "GGUF " + " ".join(f"{name}x{count}" for name, count in counts.most_common())
