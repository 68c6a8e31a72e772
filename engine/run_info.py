"""Describes a run before its first step: resolved settings, machine, model."""

from __future__ import annotations

from dataclasses import asdict

from engine.environment import describe_environment
from engine.kernels.policy import SiteOverride
from engine.model.load import LoadedModel
from engine.observer import RunInfo
from engine.settings import EngineSettings


def describe_run(loaded: LoadedModel, settings: EngineSettings, overrides: tuple[SiteOverride, ...]) -> RunInfo:
    """Everything that identifies the run, JSON-ready where it goes into a trace."""
    resolved = settings.resolved()
    resolved["model"] = {
        "source": loaded.source,
        "architecture": loaded.architecture,
        "dtype": loaded.dtype,
        "quantization": loaded.quantization,
    }
    if overrides:
        resolved["overrides"] = [asdict(override) for override in overrides]
    return RunInfo(
        settings=resolved,
        environment=describe_environment(),
        weights_hash=loaded.weights_hash,
        tokenizer_hash=loaded.tokenizer_hash,
        layers=loaded.layers,
        kv_heads=loaded.kv_heads,
        head_size=loaded.head_size,
        vocabulary_size=loaded.vocabulary_size,
        token_bytes=loaded.tokenizer.token_bytes,
    )
