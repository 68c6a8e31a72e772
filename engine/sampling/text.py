"""Tokens to text, a piece at a time: only whole characters come out. Must not know stop rules or requests."""

from __future__ import annotations

import codecs
from collections.abc import Callable


class IncrementalText:
    """Decodes UTF-8 as tokens arrive; a token may hold part of a character, or parts of two.

    What is not UTF-8 becomes U+FFFD, and the text is the same however the bytes were split.
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        """Take the bytes of each token from `token_bytes`."""
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Return the characters that `token` completes; empty while a character is incomplete."""
        return self._decoder.decode(self._token_bytes(token))

    def finish(self) -> str:
        """Return what is left at the end of the output: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)
