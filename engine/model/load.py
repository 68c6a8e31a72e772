"""Loads a model and its tokenizer: from a GGUF file, an mlx-lm directory or a hub repository.

Owns the distinction between the three and the sentences for what can go wrong. Must not know how a model is
run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
import mlx.core as mx
import mlx.nn as nn
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.models.cache import make_prompt_cache

from engine.errors import EngineError, SettingsError
from engine.model.gguf import build_model
from engine.model.gguf_header import is_gguf, read_header
from engine.model.gguf_tokenizer import build_tokenizer
from engine.model.tokenizer import HubTokenizer, Tokenizer, table_hash
from engine.model.weights_hash import weights_hash

DTYPES: Mapping[str, mx.Dtype] = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

_REPOSITORY_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to run, with what a trace must know of it.

    `dtype` is that of activations and of all weights that are not packed. `kv_heads` and `head_size` shape
    one K row (and V row) of a layer. `quantization` is a description for people; `source` is what the caller
    named. `configuration` holds the arguments of mlx-lm's model class as JSON values: equal weights under
    another rotary base are another model.
    """

    model: nn.Module
    tokenizer: Tokenizer
    architecture: str
    source: str
    weights_hash: str
    tokenizer_hash: str
    dtype: str
    layers: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    quantization: str
    configuration: Mapping[str, Any] = field(default_factory=dict)


def load_model(source: str | Path, dtype: str = "float32") -> LoadedModel:
    """Load the model named by `source`: a GGUF file, a directory for mlx-lm, or a hub id `owner/name`.

    Raises SettingsError for an unknown dtype, UnsupportedModelError for a model that cannot be run,
    EngineError when the source does not exist, cannot be reached or is damaged.
    """
    if dtype not in DTYPES:
        raise SettingsError(f"dtype '{dtype}' is unknown; choose one of {', '.join(DTYPES)}")
    try:
        path = _local_path(source)
        if path is not None and path.is_file():
            return _load_gguf_file(path, str(source), dtype)
        if path is not None and path.is_dir():
            return _load_directory(path, str(source), dtype)
    except OSError as error:
        raise EngineError(f"{str(source)[:200]} cannot be read: {error.strerror or error}") from error
    return _load_directory(_download(str(source)), str(source), dtype)


def model_configuration(model: nn.Module) -> dict[str, Any]:
    """The arguments that `model` was made with, as JSON values; empty where its class keeps none."""
    arguments = getattr(model, "args", None)
    if not is_dataclass(arguments) or isinstance(arguments, type):
        return {}
    plain: dict[str, Any] = json.loads(json.dumps(asdict(arguments), default=str))
    return plain


def _local_path(source: str | Path) -> Path | None:
    """`source` as a path, None where it cannot be one (an empty text, a home of nobody)."""
    try:
        return Path(source).expanduser() if str(source) else None
    except RuntimeError:
        return None


def _load_gguf_file(path: Path, source: str, dtype: str) -> LoadedModel:
    if not is_gguf(path):
        raise EngineError(f"{path} is not a GGUF file; name a .gguf file, an mlx-lm directory or a hub id")
    header = read_header(path)
    built = build_model(header, DTYPES[dtype])
    tokenizer = build_tokenizer(header)
    return LoadedModel(
        model=built.model,
        tokenizer=tokenizer,
        architecture=header.text("general.architecture"),
        source=source,
        weights_hash=weights_hash(built.model),
        tokenizer_hash=tokenizer.hash,
        dtype=dtype,
        layers=built.layers,
        kv_heads=built.kv_heads,
        head_size=built.head_size,
        vocabulary_size=built.vocabulary_size,
        quantization=built.quantization,
        configuration=model_configuration(built.model),
    )


def _load_directory(path: Path, source: str, dtype: str) -> LoadedModel:
    if not (path / "config.json").is_file():
        raise EngineError(f"{path} holds no config.json; name a directory that mlx-lm can load, or a GGUF file")
    try:
        model, wrapper, config = mlx_lm_utils.load(str(path), return_config=True)
    except Exception as error:  # Many libraries stand behind this call; all of it is the user's file to us.
        raise EngineError(f"mlx-lm cannot load the model at {path}: {_first_line(error)}") from error
    model.set_dtype(DTYPES[dtype])
    mx.eval(model.parameters())
    shape = _probe_shape(model)
    tokenizer = HubTokenizer(wrapper, _directory_tokenizer_hash(path, wrapper))
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        architecture=str(config["model_type"]),
        source=source,
        weights_hash=weights_hash(model),
        tokenizer_hash=tokenizer.hash,
        dtype=dtype,
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        vocabulary_size=shape.vocabulary_size,
        quantization=_describe_quantization(config),
        configuration=model_configuration(model),
    )


def _download(source: str) -> Path:
    if not _REPOSITORY_ID.fullmatch(source) or source.endswith(".gguf"):
        raise EngineError(
            f"no model at '{source[:200]}': there is no such file or directory, and this is no hub id "
            "owner/name; check the name"
        )
    try:
        return Path(huggingface_hub.snapshot_download(source, allow_patterns=mlx_lm_utils.DEFAULT_ALLOW_PATTERNS))
    except Exception as error:  # The client's errors come from three libraries, and differ by version.
        raise EngineError(
            f"no model at '{source}': there is no such file or directory, and the hub gave no repository "
            f"of that name ({_first_line(error)}); check the name and the network"
        ) from error


@dataclass(frozen=True, slots=True)
class _ModelShape:
    layers: int
    kv_heads: int
    head_size: int
    vocabulary_size: int


def _probe_shape(model: nn.Module) -> _ModelShape:
    """Shapes seen in a forward of one token: configurations name them in too many ways.

    `kv_heads` and `head_size` are 0 where the first layer keeps other state than K/V rows.
    """
    caches = make_prompt_cache(model)
    logits = model(mx.array([[0]]), cache=caches)
    keys = getattr(caches[0], "keys", None)
    kv_heads, head_size = (keys.shape[1], keys.shape[3]) if keys is not None and keys.ndim == 4 else (0, 0)
    return _ModelShape(len(caches), kv_heads, head_size, logits.shape[-1])


def _directory_tokenizer_hash(path: Path, wrapper: Any) -> str:
    names = ("tokenizer.json", "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja")
    files = [path / name for name in names]
    tables = [file.read_bytes() for file in files if file.is_file()]
    template = json.dumps(wrapper.chat_template, sort_keys=True)
    return table_hash([*tables, template, repr(sorted(wrapper.eos_token_ids))])


def _describe_quantization(config: Mapping[str, Any]) -> str:
    packing = config.get("quantization") or config.get("quantization_config")
    if not isinstance(packing, Mapping) or "bits" not in packing:
        return "none"
    return f"{packing.get('mode', 'affine')} {packing['bits']} bit, groups of {packing.get('group_size')}"


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
