"""Prompts of an exact token count and lists of requests. Deterministic: a seed gives the same requests everywhere."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from engine.model.load import LoadedModel
from engine.request import Request

SENTENCES = (
    "The ferry leaves the island at six in the morning, and again at noon when the wind allows it.",
    "A carpenter measures the frame twice, writes the numbers on a board, and cuts the first plank.",
    "Most of the letters in the archive were never answered, though each of them asks a question.",
    "When the river rises above the third step, the baker moves his flour to the upper floor.",
    "Two students count the birds at the pond every evening and compare their lists on Sundays.",
    "The old clock in the hall loses four minutes a week, so somebody has to wind it forward.",
    "Rain is collected from the roof in a tank that holds enough water for nine dry days.",
    "She explained how the loom works by pulling one thread after another out of the cloth.",
    "A map of the tunnels hangs in the office, but nobody trusts the part near the harbour.",
    "The committee could not agree on a colour, so the bridge was painted in three of them.",
    "Before the concert begins, the violinist walks once around the stage without her shoes.",
    "Every spring the gardener plants one row of something that he has never grown before.",
)


def text_prompt(loaded: LoadedModel, tokens: int, seed: int) -> tuple[int, ...]:
    """Exactly `tokens` token ids of readable text, another text for each seed."""
    order = np.random.default_rng(seed)
    ids: list[int] = []
    while len(ids) < tokens:
        chosen = (SENTENCES[index] for index in order.permutation(len(SENTENCES)))
        ids += loaded.tokenizer.encode(" ".join(chosen) + " ")
    return tuple(ids[:tokens])


def text_requests(loaded: LoadedModel, prompt_tokens: Sequence[int], max_tokens: Sequence[int]) -> list[Request]:
    """One request per pair of prompt length and output length; no end-of-text stops them early."""
    return [
        Request(f"r{index}", text_prompt(loaded, length, index), output, ignore_eos=True)
        for index, (length, output) in enumerate(zip(prompt_tokens, max_tokens, strict=True))
    ]


def repeating_prompt(loaded: LoadedModel, tokens: int, seed: int, period: int = 40) -> tuple[int, ...]:
    """Exactly `tokens` token ids: one passage of `period` tokens again and again, which a model goes on copying."""
    passage = text_prompt(loaded, period, seed)
    return (passage * (tokens // period + 1))[:tokens]
