"""Gives strings, token lists, token texts and plans their numbers in a trace, storing each once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from divtrace.trace.writer import TraceWriter
from engine.observer import Plan

_PLAN_STRINGS = ("site", "operation", "path", "decided_by", "dtype", "model")
_PLAN_NUMBERS = ("rows", "input_size", "output_size", "bits", "group_size")

KEPT_PLANS = 256
"""Plans that are known by their records' identities; all others are compared."""


class Interner:
    """Numbers of what a trace stores once. `token_bytes` gives the text of a token id."""

    def __init__(self, writer: TraceWriter, token_bytes: Callable[[int], bytes]) -> None:
        self._writer = writer
        self._token_bytes = token_bytes
        self._strings: dict[str, int] = {}
        self._tokens: set[int] = set()
        self._plans: dict[Plan, int] = {}
        self._same_plans: dict[tuple[int, ...], tuple[Plan, int]] = {}

    def string(self, text: str) -> int:
        """Row of `text` in `strings`."""
        known = self._strings.get(text)
        if known is not None:
            return known
        offset, count = self._append_bytes("string_bytes", text.encode("utf-8", "surrogatepass"))
        row = self._writer.append_row("strings", offset=offset, count=count)
        self._strings[text] = row
        return row

    def token_list(self, tokens: Sequence[int]) -> int:
        """Append token ids to the flat table, store their texts; return the first one's number."""
        self.token_texts(tokens)
        return self._writer.append("token_lists", {"value": np.array(tokens, np.uint32)})

    def token_texts(self, tokens: Iterable[int]) -> None:
        """Make sure that the text of each of these ids is in the trace."""
        fresh = sorted(set(tokens) - self._tokens)
        if not fresh:
            return
        texts = [self._token_bytes(token) for token in fresh]
        first, _ = self._append_bytes("token_text_bytes", b"".join(texts))
        counts = [len(text) for text in texts]
        offsets = first + np.cumsum([0, *counts[:-1]])
        self._writer.append("token_texts", {"token": fresh, "offset": offsets, "count": counts})
        self._tokens.update(fresh)

    def plan(self, plan: Plan) -> int:
        """Row of `plan` in `plans`."""
        # An engine gives the same records again and again, and comparing hundreds of them costs a part of each step.
        records = tuple(map(id, plan))
        if records not in self._same_plans:
            if len(self._same_plans) >= KEPT_PLANS:
                self._same_plans.clear()
            # The plan is kept with its row: while its records live, no others have their identities.
            self._same_plans[records] = plan, self._row_of(plan)
        return self._same_plans[records][1]

    def _row_of(self, plan: Plan) -> int:
        known = self._plans.get(plan)
        if known is not None:
            return known
        texts = {f"{name}_string": [self.string(getattr(site, name)) for site in plan] for name in _PLAN_STRINGS}
        numbers = {name: [getattr(site, name) for site in plan] for name in _PLAN_NUMBERS}
        offset = self._writer.append("plan_sites", texts | numbers)
        row = self._writer.append_row("plans", site_offset=offset, site_count=len(plan))
        self._plans[plan] = row
        return row

    def _append_bytes(self, table: str, raw: bytes) -> tuple[int, int]:
        return self._writer.append(table, {"value": np.frombuffer(raw, np.uint8)}), len(raw)
