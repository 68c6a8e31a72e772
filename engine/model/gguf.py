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
from engine.model.gguf_arguments import ROPE_FACTORS, model_arguments
from engine.model.gguf_header import GgufHeader

GROUP_SIZE = 32

LAYER_NAMES: Mapping[str, str] = {
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
TOP_NAMES: Mapping[str, str] = {
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
    arguments = model_arguments(header, architecture)
    _check_names(header)
    arrays = _read_arrays(header)
    rope_factors = arrays.pop(ROPE_FACTORS, None)
    parameters = {
        parameter: array if array.dtype == mx.uint32 else array.astype(dtype)
        for name, array in arrays.items()
        if (parameter := _parameter_name(name)) is not None
    }
    model = _assemble(header, architecture, arguments, parameters)
    if rope_factors is not None:
        _set_rope_factors(header, model, rope_factors)
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


def _assemble(
    header: GgufHeader,
    architecture: str,
    arguments: Mapping[str, Any],
    parameters: Mapping[str, mx.array],
) -> nn.Module:
    module = import_module(f"mlx_lm.models.{architecture}")
    model: nn.Module = module.Model(module.ModelArgs.from_dict(arguments))
    nn.quantize(model, group_size=GROUP_SIZE, bits=4, class_predicate=_packing_of(parameters))
    try:
        model.load_weights(list(parameters.items()), strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())
        raise EngineError(f"{header.path}: its tensors do not make a {architecture} model: {reason}") from error
    return model


def _read_arrays(header: GgufHeader) -> dict[str, mx.array]:
    try:
        arrays: Any = mx.load(str(header.path), format="gguf")
    except (RuntimeError, ValueError) as error:
        raise EngineError(f"{header.path} cannot be read: {error}") from error
    return dict(arrays)


def _check_names(header: GgufHeader) -> None:
    """Refuse tensors without a place, and names that MLX itself gives to the parts of a packed tensor."""
    for info in header.tensors:
        leaf = info.name.rpartition(".")[2]
        if info.name != ROPE_FACTORS and (_parameter_name(info.name) is None or leaf not in ("weight", "bias")):
            raise UnsupportedModelError(
                f"{header.path}: tensor '{info.name}' has no place in this {header.text('general.architecture')} "
                "model; use the model's mlx-lm directory instead"
            )


def _parameter_name(name: str) -> str | None:
    """mlx-lm's name of a tensor, None where it has none."""
    stem, _, leaf = name.rpartition(".")
    match stem.split("."):
        case ["blk", index, part] if part in LAYER_NAMES and index.isdecimal():
            return f"model.layers.{index}.{LAYER_NAMES[part]}.{leaf}"
        case [part] if part in TOP_NAMES:
            return f"{TOP_NAMES[part]}.{leaf}"
    return None


def _set_rope_factors(header: GgufHeader, model: Any, factors: mx.array) -> None:
    """A Llama 3 file divides each rotary frequency by a factor; MLX takes inverse frequencies, in float32."""
    head_size = model.args.head_dim
    if factors.shape != (head_size // 2,) or not mx.all(factors > 0).item():
        raise EngineError(f"{header.path}: tensor '{ROPE_FACTORS}' must hold {head_size // 2} positive factors")
    inverse = model.args.rope_theta ** (mx.arange(0, head_size, 2) / head_size) * factors.astype(mx.float32)
    mx.eval(inverse)
    for layer in model.layers:
        layer.self_attn.rope._freqs = inverse


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
