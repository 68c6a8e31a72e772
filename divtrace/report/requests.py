"""Requests to read, side by side: tokens, gaps, drifts, top-k. Keeps within a budget and says what it left out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from divtrace.align.index import Decisions, TraceIndex
from divtrace.align.pairing import RequestPair
from divtrace.align.runs import RunPair
from divtrace.report.drift import decision_drift
from divtrace.report.model import Floats, RequestPage, RequestSide, StringTable, TopColumns
from divtrace.report.page_text import page_text, token_texts
from divtrace.report.runs import rounded
from divtrace.show.safe_text import decoded
from divtrace.trace.schema import Level

LARGEST_PAGE_TOKENS = 120_000
LARGEST_TOP_DECISIONS = 5_000


@dataclass(slots=True)
class Budget:
    """What is still free on the page. A request is shown whole or not at all; its top-k the same."""

    tokens: int = LARGEST_PAGE_TOKENS
    top_decisions: int = LARGEST_TOP_DECISIONS

    def take_tokens(self, count: int) -> bool:
        """True when `count` more tokens have room; then they are taken."""
        fits = count <= self.tokens
        self.tokens -= count if fits else 0
        return fits

    def take_top(self, count: int) -> bool:
        """The same for decisions with top-k."""
        fits = count <= self.top_decisions
        self.top_decisions -= count if fits else 0
        return fits


class RequestReader:
    """Reads requests of one run or of two into pages, the most important first."""

    def __init__(self, strings: StringTable) -> None:
        self._strings = strings
        self._budget = Budget()
        self._token_texts: dict[int, int] = {}

    def pair(self, runs: RunPair, pair: RequestPair) -> RequestPage | None:
        """One request in both runs, None when it has no room."""
        timeline = runs.timeline(pair)
        if not self._budget.take_tokens(timeline.tokens_a.size + timeline.tokens_b.size):
            return None
        outputs = timeline.tokens_a.size + timeline.tokens_b.size - 2 * timeline.prompt_tokens
        with_top = self._budget.take_top(outputs)
        decided = runs.decisions(timeline)
        margin: Floats = []
        largest: Floats = []
        if runs.both_have(Level.LOGITS):
            drift = decision_drift(runs, decided)
            margin, largest = rounded(drift.margin.tolist(), 5), rounded(drift.largest.tolist(), 5)
        return RequestPage(
            id=page_text(pair.id_a),
            prompt_tokens=timeline.prompt_tokens,
            split=timeline.divergence if timeline.prompt_difference is None else timeline.prompt_difference,
            a=self._side(runs.a, pair.number_a, with_top),
            b=self._side(runs.b, pair.number_b, with_top),
            margin_drift=margin,
            logit_drift=largest,
        )

    def single(self, index: TraceIndex, number: int, is_b: bool = False) -> RequestPage | None:
        """One request that only this run has, None when it has no room."""
        prompt = len(index.trace.prompt(number))
        decided = index.decisions(number)
        if not self._budget.take_tokens(prompt + decided.chosen.size):
            return None
        side = self._side(index, number, self._budget.take_top(decided.chosen.size))
        a, b = (None, side) if is_b else (side, None)
        return RequestPage(page_text(index.request_ids[number]), prompt, None, a, b, [], [])

    def _side(self, index: TraceIndex, number: int, with_top: bool) -> RequestSide:
        decided = index.decisions(number)
        tokens = [*index.trace.prompt(number).tolist(), *decided.chosen.tolist()]
        texts = token_texts(index.trace.token_text(token) for token in tokens)
        has_logits = index.has(Level.LOGITS)
        return RequestSide(
            number=number,
            tokens=tokens,
            texts=[self._strings.add(text) for text in texts],
            steps=decided.steps.tolist(),
            gaps=rounded(index.gaps[decided.records].astype(np.float64).tolist()) if has_logits else [],
            top=self._top(index, decided) if with_top and has_logits else None,
        )

    def _top(self, index: TraceIndex, decided: Decisions) -> TopColumns:
        ids = index.gather("sampled", "processed_top_ids", decided.records)
        logits = index.gather("sampled", "processed_top_values", decided.records)
        flat = ids.reshape(-1).tolist()
        texts = [self._text(index, token) for token in flat]
        values = rounded(logits.astype(np.float64).reshape(-1).tolist(), 9)
        return TopColumns(int(ids.shape[1]), flat, texts, values)

    def _text(self, index: TraceIndex, token: int) -> int:
        if token not in self._token_texts:
            self._token_texts[token] = self._strings.add(page_text(decoded(index.trace.token_text(token))))
        return self._token_texts[token]


def in_reading_order(runs: RunPair, focus: str | None, diverged: Iterable[str]) -> list[RequestPair]:
    """Pairs, the explained request first, then those that split, then the others as submitted."""
    split = set(diverged)
    return sorted(runs.pairing.pairs, key=lambda pair: (pair.id_a != focus, pair.id_a not in split))
