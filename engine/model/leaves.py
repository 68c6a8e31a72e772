"""Swaps linear-like leaves by class for ones that ask the dispatcher. Must not know policies or requests.

The parameter tree, module paths, isinstance checks and weight loading stay as they are: only `__class__` changes,
and the two private attributes bypass the module's own dictionary.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import mlx.nn as nn

from engine.kernels.site import LinearSite
from engine.model.site_outputs import SiteOutputs


def _run(leaf: nn.Module, x: mx.array) -> mx.array:
    outputs = cast("SiteOutputs", object.__getattribute__(leaf, "_outputs"))
    return outputs.linear(cast("LinearSite", object.__getattribute__(leaf, "_site")), x)


class RecordedLinear(nn.Linear):
    """A dense linear whose kernel the dispatcher chooses."""

    def __call__(self, x: mx.array) -> mx.array:
        """(..., K) -> (..., N)."""
        return _run(self, x)


class RecordedQuantizedLinear(nn.QuantizedLinear):
    """A quantized linear whose kernel the dispatcher chooses."""

    def __call__(self, x: mx.array) -> mx.array:
        """(..., K) -> (..., N)."""
        return _run(self, x)


class RecordedEmbedding(nn.Embedding):
    """A tied embedding whose use as the output projection the dispatcher chooses."""

    def as_linear(self, x: mx.array) -> mx.array:
        """(..., K) -> (..., vocabulary)."""
        return _run(self, x)


class RecordedQuantizedEmbedding(nn.QuantizedEmbedding):
    """A quantized tied embedding whose use as the output projection the dispatcher chooses."""

    def as_linear(self, x: mx.array) -> mx.array:
        """(..., K) -> (..., vocabulary)."""
        return _run(self, x)


def instrument(model: nn.Module, outputs: SiteOutputs) -> dict[str, LinearSite]:
    """Swap every linear-like leaf of `model`; returns its sites by module path."""
    sites: dict[str, LinearSite] = {}
    for path, leaf in model.named_modules():
        match leaf:
            case RecordedLinear() | RecordedQuantizedLinear() | RecordedEmbedding() | RecordedQuantizedEmbedding():
                raise ValueError(f"{path} is instrumented already; a model has one dispatcher")
            case nn.QuantizedLinear() if type(leaf) is nn.QuantizedLinear:
                swapped, native = RecordedQuantizedLinear, nn.QuantizedLinear.__call__
            case nn.Linear() if type(leaf) is nn.Linear:
                swapped, native = RecordedLinear, nn.Linear.__call__
            case nn.QuantizedEmbedding() if type(leaf) is nn.QuantizedEmbedding:
                swapped, native = RecordedQuantizedEmbedding, nn.QuantizedEmbedding.as_linear
            case nn.Embedding() if type(leaf) is nn.Embedding:
                swapped, native = RecordedEmbedding, nn.Embedding.as_linear
            case _:
                continue
        # A site made by an earlier packed model is kept, because its dense weights are costly to make again.
        site = getattr(leaf, "_site", None) or LinearSite(path, leaf, native.__get__(leaf))
        leaf.__class__ = swapped
        object.__setattr__(leaf, "_outputs", outputs)
        object.__setattr__(leaf, "_site", site)
        sites[path] = site
    return sites


def uninstrument(model: nn.Module) -> None:
    """Give every leaf its own class back; its `_site` stays for the next packed model of the same weights."""
    originals = {
        RecordedLinear: nn.Linear,
        RecordedQuantizedLinear: nn.QuantizedLinear,
        RecordedEmbedding: nn.Embedding,
        RecordedQuantizedEmbedding: nn.QuantizedEmbedding,
    }
    for leaf in model.modules():
        original = originals.get(type(leaf))
        if original is not None:
            leaf.__class__ = original
            object.__delattr__(leaf, "_outputs")
