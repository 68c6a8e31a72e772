"""From processed logits to a token: temperature, top-k, top-p, min-p, then the inverse distribution function.

All arithmetic is float64 on one row: a choice depends on that row, the parameters and one number alone.
Filters run in the order of Hugging Face transformers (5.24, `generation/utils.py`): temperature, top-k, top-p
of the mass that top-k left, min-p. Where a run of the largest tokens reaches top-p exactly, the run ends
there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.request import SamplingParams
from engine.sampling.greedy import greedy_token
from engine.sampling.random_numbers import uniform

Logits = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]
TokenIds = npt.NDArray[np.intp]

FIRST_CANDIDATES = 1024
"""Largest tokens that top-p sorts at first; it quadruples them while their mass is too small."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A token and the uniform number in [0, 1) that chose it, None when the choice was greedy."""

    token: int
    random_number: float | None


def choose_token(processed: Logits, params: SamplingParams, request_id: str, position: int) -> Choice:
    """Choose the token at `position` of a request from its processed logits, shape (vocabulary,).

    Raises:
        LogitsError: the logits hold NaN or +inf, or no token is possible; names request and position.
    """
    where = f"request {request_id!r}, position {position}"
    if params.is_greedy:
        return Choice(greedy_token(processed, where), None)
    random_number = uniform(params.seed, request_id, position)
    return Choice(draw_token(probabilities(processed, params, where), random_number), random_number)


def draw_token(distribution: Probabilities, random_number: float) -> int:
    """Return the first id at which the running sum, in id order, exceeds `random_number` times the total.

    Args:
        distribution: float64, shape (vocabulary,), not negative, not all 0; need not sum to exactly 1.
        random_number: in [0, 1).
    """
    cumulative = np.cumsum(distribution)
    target = random_number * cumulative[-1]
    token = int(np.searchsorted(cumulative, target, side="right"))
    if token < distribution.size:
        return token
    return int(np.flatnonzero(distribution)[-1])  # the product was rounded up to the total


def probabilities(processed: Logits, params: SamplingParams, where: str = "logits") -> Probabilities:
    """Return the distribution that the parameters define: float64, shape (vocabulary,), sums to 1.

    Where a count decides (top-k, top-p) the lower id is kept among equals; min-p treats equals alike.
    Greedy parameters give all mass to the greedy token.

    Raises:
        LogitsError: the logits hold NaN or +inf, or no token is possible; `where` names the row.
    """
    peak = greedy_token(processed, where)
    if params.is_greedy:
        return _point_mass(peak, processed.size)
    highest = float(processed[peak])
    with np.errstate(over="ignore"):  # a tiny temperature may send a difference to -inf, whose weight is 0
        weights = np.exp((processed.astype(np.float64) - highest) / params.temperature)
    kept = _kept_tokens(weights, params)
    if kept is None:
        return np.asarray(weights / weights.sum())
    kept = np.sort(kept)
    filtered = np.zeros_like(weights)
    filtered[kept] = weights[kept] / weights[kept].sum()
    return filtered


def _kept_tokens(weights: Probabilities, params: SamplingParams) -> TokenIds | None:
    """Ids that survive the filters; None when all do. The highest weight is exactly 1."""
    kept: TokenIds | None = None
    if 0 < params.top_k < weights.size:
        kept = _largest_first(weights, params.top_k)[: params.top_k]
    if params.top_p < 1.0:
        kept = _nucleus(weights, params.top_p, kept)
    if params.min_p > 0.0:
        kept = np.arange(weights.size) if kept is None else kept
        kept = kept[weights[kept] >= params.min_p]
    return kept


def _nucleus(weights: Probabilities, top_p: float, kept: TokenIds | None) -> TokenIds:
    """The shortest run of the largest weights that reaches `top_p` of the mass of what was kept so far."""
    if kept is not None:
        return kept[: _prefix_length(weights[kept], top_p * float(weights[kept].sum()))]
    wanted = top_p * float(weights.sum())
    count = FIRST_CANDIDATES
    while True:
        candidates = _largest_first(weights, count)
        length = _prefix_length(weights[candidates], wanted)
        if length < candidates.size or candidates.size == weights.size:
            return candidates[:length]
        count *= 4


def _prefix_length(descending: Probabilities, wanted: float) -> int:
    """How many of the largest weights it takes to reach `wanted`; at least one, at most all."""
    reached = int(np.searchsorted(np.cumsum(descending), wanted, side="left"))
    return min(reached + 1, descending.size)


def _largest_first(weights: Probabilities, count: int) -> TokenIds:
    """Ids of at least the `count` largest weights, largest first, lower id first among equals."""
    if count < weights.size:
        smallest = np.partition(weights, weights.size - count)[weights.size - count]
        candidates = np.flatnonzero(weights >= smallest)
    else:
        candidates = np.arange(weights.size)
    return candidates[np.argsort(-weights[candidates], kind="stable")]


def _point_mass(token: int, vocabulary_size: int) -> Probabilities:
    mass = np.zeros(vocabulary_size)
    mass[token] = 1.0
    return mass
