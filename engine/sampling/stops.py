"""When a request's output ends: stop tokens, end-of-sequence tokens, stop strings across token boundaries.

Fed with committed tokens only, one at a time, so that a burst of accepted proposals ends where single steps
would.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from engine.errors import SettingsError
from engine.request import Request
from engine.sampling.text import IncrementalText


class StopCause(StrEnum):
    """Which rule ended the output."""

    END_OF_SEQUENCE = "end_of_sequence"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends one request's output."""

    end_tokens: frozenset[int] = frozenset()
    stop_tokens: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StopHit:
    """The output ended: by which rule, on which token id or string, and the length of the text that stays.

    The token that ended it is committed, but a stop token adds no text, and text from the start of a stop
    string on is cut. `text_length` counts characters of the request's whole output.
    """

    cause: StopCause
    matched: str
    text_length: int


@dataclass(frozen=True, slots=True)
class Emitted:
    """Text that may be streamed now, and the stop if there was one."""

    text: str
    hit: StopHit | None = None


def stop_rules(request: Request, end_tokens: Collection[int]) -> StopRules:
    """Gather a request's rules; `end_tokens` are the model's, left out when the request ignores them.

    Raises:
        SettingsError: a stop string is empty (it would match before the first character).
    """
    if any(not string for string in request.stop_strings):
        raise SettingsError(f"request {request.id!r}: a stop string is empty; remove it.")
    kept = frozenset() if request.ignore_eos else frozenset(end_tokens)
    return StopRules(kept, frozenset(request.stop_token_ids), request.stop_strings)


class StopWatch:
    """Watches one request's output for its stop rules and yields the text that is safe to stream.

    Text that may be the beginning of a stop string is held back until it is decided. Of several stop
    strings the one that is complete first counts; of those complete at the same character, the one that
    starts first.
    """

    def __init__(self, rules: StopRules, token_bytes: Callable[[int], bytes]) -> None:
        """Watch for `rules`, with `token_bytes` giving the UTF-8 bytes of a token id."""
        self._rules = rules
        self._text = IncrementalText(token_bytes)
        self._held = ""
        self._emitted_characters = 0

    def push(self, token: int) -> Emitted:
        """Take the next committed token. After a hit nothing more may be pushed."""
        if token in self._rules.end_tokens:
            return self._stop_on_token(StopCause.END_OF_SEQUENCE, token)
        if token in self._rules.stop_tokens:
            return self._stop_on_token(StopCause.STOP_TOKEN, token)
        return self._push_text(self._text.push(token))

    def finish(self) -> Emitted:
        """End the output for another reason (length) and return what was held back."""
        emitted = self._push_text(self._text.finish())
        if emitted.hit is not None:
            return emitted
        return Emitted(emitted.text + self._emit(len(self._held)))

    def _stop_on_token(self, cause: StopCause, token: int) -> Emitted:
        ending = self.finish()
        if ending.hit is not None:
            return ending
        return Emitted(ending.text, StopHit(cause, str(token), self._emitted_characters))

    def _push_text(self, text: str) -> Emitted:
        self._held += text
        found = [
            (start + len(string), start, string)
            for string in self._rules.strings
            if (start := self._held.find(string)) >= 0
        ]
        if found:
            _, start, string = min(found)
            kept = self._emit(start)
            return Emitted(kept, StopHit(StopCause.STOP_STRING, string, self._emitted_characters))
        return Emitted(self._emit(len(self._held) - self._undecided_characters()))

    def _undecided_characters(self) -> int:
        """Length of the longest end of the held text that a stop string begins with."""
        longest = max((len(string) - 1 for string in self._rules.strings), default=0)
        for length in range(min(longest, len(self._held)), 0, -1):
            if any(string.startswith(self._held[-length:]) for string in self._rules.strings):
                return length
        return 0

    def _emit(self, characters: int) -> str:
        text, self._held = self._held[:characters], self._held[characters:]
        self._emitted_characters += len(text)
        return text
