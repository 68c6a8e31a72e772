"""Logit processors: bias and penalties, in float32, before any temperature.

Order: bias, repetition, frequency, presence. Owns the arithmetic; must not know where a history comes from.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError
from engine.request import SamplingParams

Logits = npt.NDArray[np.float32]
TokenIds = npt.NDArray[np.int64]


def process_logits(logits: Logits, params: SamplingParams, history: Sequence[int], prompt_length: int) -> Logits:
    """Apply bias and penalties to one row.

    The repetition penalty divides positive and multiplies negative logits of every token of prompt and output
    (Keskar et al. 2019, CTRL). Frequency and presence penalties count the output alone, as in the OpenAI API.
    Returns `logits` itself when nothing changes it, else a new array; the argument is never written to.

    Args:
        logits: float32, shape (vocabulary,).
        params: the request's parameters.
        history: prompt and output token ids up to the position that is decided here.
        prompt_length: how many of `history` are prompt.

    Raises:
        EngineError: a token id lies outside the vocabulary.
    """
    if params.leaves_logits_unchanged:
        return logits
    processed = logits.copy()
    _add_bias(processed, params)
    if params.repetition_penalty != 1.0:
        _penalize_repetition(processed, params.repetition_penalty, history)
    if params.frequency_penalty != 0.0 or params.presence_penalty != 0.0:
        _penalize_output(processed, params, history[prompt_length:])
    return processed


def process_rows(
    rows: Logits, params: SamplingParams, history: Sequence[int], prompt_length: int, proposed: Sequence[int]
) -> Logits:
    """Process the rows of one verification: row i sees the history plus the first i proposals.

    Args:
        rows: float32, shape (rows, vocabulary), at most one row more than there are proposals.
        params: the request's parameters.
        history: prompt and output token ids before the first row's position.
        prompt_length: how many of `history` are prompt.
        proposed: the draft's tokens.

    Returns:
        Shape (rows, vocabulary); `rows` itself when nothing changes it.
    """
    if params.leaves_logits_unchanged:
        return rows
    grown = [*history, *proposed]
    known = len(history)
    return np.stack([process_logits(row, params, grown[: known + i], prompt_length) for i, row in enumerate(rows)])


def _add_bias(processed: Logits, params: SamplingParams) -> None:
    for token, bias in params.logit_bias:
        if not 0 <= token < processed.size:
            raise EngineError(
                f"logit bias names token {token}, but the vocabulary ends at {processed.size - 1}; remove it."
            )
        processed[token] += np.float32(bias)


def _penalize_repetition(processed: Logits, penalty: float, history: Sequence[int]) -> None:
    tokens = np.unique(_token_ids(history, processed.size))
    values = processed[tokens]
    factor = np.float32(penalty)
    processed[tokens] = np.where(values > 0, values / factor, values * factor)


def _penalize_output(processed: Logits, params: SamplingParams, output: Sequence[int]) -> None:
    tokens, counts = np.unique(_token_ids(output, processed.size), return_counts=True)
    processed[tokens] -= np.float32(params.frequency_penalty) * counts.astype(np.float32)
    processed[tokens] -= np.float32(params.presence_penalty)


def _token_ids(tokens: Sequence[int], vocabulary_size: int) -> TokenIds:
    ids = np.fromiter(tokens, np.int64, len(tokens))
    if ids.size and (ids.min() < 0 or ids.max() >= vocabulary_size):
        wrong = int(ids[(ids < 0) | (ids >= vocabulary_size)][0])
        raise EngineError(f"token {wrong} of the history lies outside the vocabulary of {vocabulary_size} tokens.")
    return ids
