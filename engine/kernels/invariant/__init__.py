"""Row-invariant kernels: a row's bits depend on nothing but its own inputs. Importing this package needs no numba."""

from __future__ import annotations

from engine.kernels.invariant.attention import VisibleKeys, paged_attention, visible_keys
from engine.kernels.invariant.linears import (
    LinearWeights,
    affine_weights,
    dense_weights,
    linear,
    linear_affine,
    linear_dense,
)
from engine.kernels.invariant.runtime import available, most_threads

__all__ = [
    "LinearWeights",
    "VisibleKeys",
    "affine_weights",
    "available",
    "dense_weights",
    "linear",
    "linear_affine",
    "linear_dense",
    "most_threads",
    "paged_attention",
    "visible_keys",
]
