"""How close decisions were: the gap between the two best logits. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt


def top_two_gap(logits: npt.NDArray[np.float32]) -> float:
    """Best minus second best logit of one row, shape (vocabulary,); inf when there is only one possible token."""
    best = int(logits.argmax())
    rest = [float(part.max()) for part in (logits[:best], logits[best + 1 :]) if part.size]
    second = max(rest, default=-math.inf)
    return float(logits[best]) - second


def margins_reached(gap: float, margins: Sequence[float]) -> list[float]:
    """Those margins that a gap does not exceed: counts by margin are cumulative, like histogram buckets."""
    return [margin for margin in margins if gap <= margin]
