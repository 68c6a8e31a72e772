"""Refuses sampling parameters that make no sense, before a request is admitted."""

from __future__ import annotations

import math

from engine.errors import SettingsError
from engine.request import SamplingParams


def check_sampling(params: SamplingParams, vocabulary_size: int) -> None:
    """Check every field against its range.

    Raises:
        SettingsError: names the first field that is out of range, with its value.
    """
    _require(_at_least_zero(params.temperature), "temperature", params.temperature, "0 (greedy) or more")
    _require(params.top_k >= 0, "top_k", params.top_k, "0 (off) or more")
    _require(0.0 < params.top_p <= 1.0, "top_p", params.top_p, "above 0 and at most 1 (off)")
    _require(0.0 <= params.min_p <= 1.0, "min_p", params.min_p, "between 0 (off) and 1")
    penalty = params.repetition_penalty
    _require(
        math.isfinite(penalty) and penalty > 0.0,
        "repetition_penalty",
        penalty,
        "finite and above 0 (1 is off)",
    )
    _require(
        math.isfinite(params.presence_penalty),
        "presence_penalty",
        params.presence_penalty,
        "finite (0 is off)",
    )
    _require(
        math.isfinite(params.frequency_penalty),
        "frequency_penalty",
        params.frequency_penalty,
        "finite (0 is off)",
    )
    for token, bias in params.logit_bias:
        _require(0 <= token < vocabulary_size, "logit_bias token", token, f"from 0 to {vocabulary_size - 1}")
        _require(not math.isnan(bias) and bias < math.inf, f"logit_bias of token {token}", bias, "finite or -inf")


def _at_least_zero(value: float) -> bool:
    return math.isfinite(value) and value >= 0.0


def _require(holds: bool, name: str, value: float, range_text: str) -> None:
    if not holds:
        raise SettingsError(f"sampling: {name} is {value}, but must be {range_text}.")
