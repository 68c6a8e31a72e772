"""Prompt lookup: propose what followed the latest earlier occurrence of the text's last n tokens.

The idea is Saxena's prompt lookup decoding (2023), vLLM's `ngram` method. Choices that are ours: the
longest n-gram wins, of its occurrences the most recent; a continuation that reaches the end of the text
goes on into what was just proposed (as an overlapping copy in LZ77), so a short period is proposed at full
length. Every n-gram is indexed once, so a step costs the same at any context length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.errors import SettingsError
from engine.observer import DraftForward
from engine.speculative.drafter import DraftRequest, Proposal


@dataclass(frozen=True, slots=True)
class PromptLookupSettings:
    """n-gram lengths, tried longest first; `miss_limit` misses in a row pause for `cooldown_steps`."""

    longest: int = 4
    shortest: int = 2
    miss_limit: int = 8
    cooldown_steps: int = 8

    def __post_init__(self) -> None:
        """Refuse lengths that find nothing."""
        if not 1 <= self.shortest <= self.longest:
            raise SettingsError(
                f"prompt lookup: n-grams of {self.shortest} to {self.longest} tokens make no sense; "
                "the shortest must be at least 1 and at most the longest."
            )
        if self.miss_limit < 1 or self.cooldown_steps < 0:
            raise SettingsError(
                f"prompt lookup: miss_limit is {self.miss_limit} and cooldown_steps {self.cooldown_steps}; "
                "they must be at least 1 and 0."
            )


class NgramIndex:
    """Where each n-gram of one growing text occurred last. Ends are exclusive: text[e-n:e] ends at e."""

    def __init__(self, shortest: int, longest: int) -> None:
        """Index n-grams of `shortest` to `longest` tokens."""
        self._lengths = range(longest, shortest - 1, -1)
        self._latest_end: dict[tuple[int, ...], int] = {}
        self._indexed = 0

    @property
    def indexed_tokens(self) -> int:
        """Ends up to here are indexed."""
        return self._indexed

    def extend(self, tokens: Sequence[int], end: int) -> None:
        """Index the n-grams that end at or before `end` and are not indexed yet."""
        for ngram_end in range(self._indexed + 1, end + 1):
            for length in self._lengths:
                if length <= ngram_end:
                    self._latest_end[tuple(tokens[ngram_end - length : ngram_end])] = ngram_end
        self._indexed = max(self._indexed, end)

    def continuation_start(self, tokens: Sequence[int]) -> int | None:
        """Where the text went on after the latest indexed occurrence of its longest known ending."""
        for length in self._lengths:
            if length <= len(tokens):
                start = self._latest_end.get(tuple(tokens[len(tokens) - length :]))
                if start is not None:
                    return start
        return None


@dataclass(slots=True)
class RequestLookup:
    """State of one request: its index, what was proposed last, and how lookups went lately."""

    index: NgramIndex
    pending: tuple[int, ...] | None = None
    misses: int = 0
    pause_steps: int = 0


@dataclass(slots=True)
class PromptLookupDrafter:
    """Drafts by prompt lookup. A miss is a step without a match or with every proposal rejected."""

    settings: PromptLookupSettings = field(default_factory=PromptLookupSettings)
    name: str = "prompt-lookup"
    _requests: dict[str, RequestLookup] = field(default_factory=dict)

    @property
    def forwards(self) -> tuple[DraftForward, ...]:
        """None: nothing is computed by a model."""
        return ()

    def propose(self, requests: Sequence[DraftRequest], step: int = 0) -> list[Proposal]:  # noqa: ARG002
        """Look up every request; an empty proposal where nothing is found or the request pauses."""
        return [Proposal(self._propose_one(request)) for request in requests]

    def committed(self, request_id: str, tokens: Sequence[int]) -> None:
        """Judge the pending proposal by its first token: accepted, or a miss."""
        lookup = self._requests.get(request_id)
        if lookup is None or lookup.pending is None or not tokens:
            return
        hit = bool(lookup.pending) and lookup.pending[0] == tokens[0]
        lookup.pending = None
        lookup.misses = 0 if hit else lookup.misses + 1
        if lookup.misses >= self.settings.miss_limit:
            lookup.misses = 0
            lookup.pause_steps = self.settings.cooldown_steps

    def rolled_back(self, request_id: str, length: int) -> None:
        """Forget an index that saw positions from `length` on; it is rebuilt when needed."""
        lookup = self._requests.get(request_id)
        if lookup is not None:
            lookup.pending = None
            if lookup.index.indexed_tokens > length:
                lookup.index = self._new_index()

    def closed(self, request_id: str) -> None:
        """Forget the request."""
        self._requests.pop(request_id, None)

    def _propose_one(self, request: DraftRequest) -> tuple[int, ...]:
        lookup = self._requests.setdefault(request.request_id, RequestLookup(self._new_index()))
        if lookup.pause_steps > 0:
            lookup.pause_steps -= 1
            lookup.pending = None
            return ()
        tokens = request.tokens
        lookup.index.extend(tokens, len(tokens) - 1)
        start = lookup.index.continuation_start(tokens)
        lookup.pending = () if start is None else _overlapping_copy(tokens, start, request.max_proposal)
        return lookup.pending

    def _new_index(self) -> NgramIndex:
        return NgramIndex(self.settings.shortest, self.settings.longest)


def _overlapping_copy(tokens: Sequence[int], start: int, length: int) -> tuple[int, ...]:
    period = len(tokens) - start
    return tuple(tokens[start + offset % period] for offset in range(length))
