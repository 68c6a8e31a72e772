"""Rotary position embedding in float64: frequencies of three published scalings, and the rotation itself.

Sources: Su et al. 2021 (RoFormer); Chen et al. 2023 (position interpolation, `linear`); Meta's Llama 3.1 (`llama3`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.errors import EvidenceError

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Rotation:
    """`frequencies`: radians a position, (head_size / 2,). `traditional`: pairs are neighbours, else two halves."""

    frequencies: Float64
    traditional: bool

    def turn(self, vectors: Float64) -> Float64:
        """Rotate (rows, heads, head_size), row i standing at position i."""
        rows, _, size = vectors.shape
        angles = np.arange(rows, dtype=np.float64)[:, None] * self.frequencies
        cosine, sine = np.cos(angles)[:, None], np.sin(angles)[:, None]
        first, second = (
            (vectors[..., 0::2], vectors[..., 1::2])
            if self.traditional
            else (vectors[..., : size // 2], vectors[..., size // 2 :])
        )
        turned = first * cosine - second * sine, first * sine + second * cosine
        if self.traditional:
            return np.stack(turned, axis=-1).reshape(vectors.shape)
        return np.concatenate(turned, axis=-1)


def frequencies(head_size: int, base: float, scaling: Mapping[str, Any] | None) -> Float64:
    """Radians a position of each pair of dimensions.

    Raises:
        EvidenceError: the scaling is of another kind.
    """
    plain = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    scaling = scaling or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(plain, scaling)
    raise EvidenceError(f"rotary scaling {kind!r} has no float64 reference; default, linear and llama3 have.")


def _llama3(plain: Float64, scaling: Mapping[str, Any]) -> Float64:
    factor = float(scaling["factor"])
    low, high = float(scaling.get("low_freq_factor", 1.0)), float(scaling.get("high_freq_factor", 4.0))
    context = float(scaling.get("original_max_position_embeddings", 8192))
    wavelengths = 2 * math.pi / plain
    smooth = (context / wavelengths - low) / (high - low)
    between = plain * ((1 - smooth) / factor + smooth)
    slowed = np.where(wavelengths > context / low, plain / factor, plain)
    is_between = (wavelengths > context / high) & (wavelengths < context / low)
    return np.where(is_between, between, slowed)
