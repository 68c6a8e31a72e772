"""Text to token ids and back.

Owns the protocol and the implementations over the `tokenizers` library and over mlx-lm's tokenizer wrapper.
Must not know where a tokenizer's tables came from, nor anything of weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import jinja2
import tokenizers
import xxhash
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import EngineError

Message = Mapping[str, str]
"""One chat message: `role` and `content`."""

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Tokenizer(Protocol):
    """What the engine and its watchers need of a tokenizer."""

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Ids that end a text, ascending; empty when the model names none."""
        ...

    @property
    def hash(self) -> str:
        """16 hex digits over everything that decides how text becomes ids."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, with the leading token that the model asks for, if it asks for one."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens stay visible, bytes that are no UTF-8 become U+FFFD."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """Raw bytes of one token, perhaps a part of a character.

        Empty for an id above the vocabulary: models pad their heads. Raises EngineError for a negative id.
        """
        ...

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """Ids of a conversation in the model's own format. Raises EngineError when the model has none."""
        ...


@cache
def byte_of_symbol() -> Mapping[str, int]:
    """The byte that each character of a byte-level BPE vocabulary stands for (source: GPT-2's encoder)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {chr(byte): byte for byte in printable}
    return symbols | {chr(256 + index): byte for index, byte in enumerate(others)}


def byte_level_piece_bytes(piece: str) -> bytes:
    """Bytes of a byte-level BPE piece; a character outside the alphabet stands for its own UTF-8."""
    symbols = byte_of_symbol()
    return b"".join(bytes([symbols[c]]) if c in symbols else c.encode("utf-8", "replace") for c in piece)


def sentencepiece_piece_bytes(piece: str) -> bytes:
    """Bytes of a SentencePiece piece: `<0xNN>` is one byte, U+2581 is a space."""
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode("utf-8", "replace")


class ChatTemplate:
    """A Jinja chat template, compiled in a sandbox because it comes with the model file.

    The current date is not offered to it: a prompt must be the same tomorrow.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.globals["raise_exception"] = _refuse_conversation
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise EngineError(f"the model's chat template does not compile: {error}; use plain prompts") from error

    def render(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        """The conversation as text. Raises EngineError when the template refuses it or fails."""
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                **self._special_tokens,
            )
        except EngineError:
            raise
        except Exception as error:  # A foreign template can fail in any way.
            raise EngineError(f"the model's chat template fails on this conversation: {error}") from error


def _refuse_conversation(message: str) -> None:
    raise EngineError(f"the model's chat template refuses this conversation: {message}")


class TableTokenizer:
    """A tokenizer over a `tokenizers.Tokenizer` that was built from tables."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        piece_bytes: Callable[[str], bytes],
        eos_token_ids: Sequence[int],
        leading_token_ids: Sequence[int],
        chat_template: ChatTemplate | None,
        table_hash: str,
    ) -> None:
        self._backend = backend
        self._piece_bytes = piece_bytes
        self._eos_token_ids = tuple(sorted(set(eos_token_ids)))
        self._leading_token_ids = list(leading_token_ids)
        self._chat_template = chat_template
        self._hash = table_hash
        self._added = {id_: token.content for id_, token in backend.get_added_tokens_decoder().items()}

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """See Tokenizer."""
        return self._eos_token_ids

    @property
    def hash(self) -> str:
        """See Tokenizer."""
        return self._hash

    def encode(self, text: str) -> list[int]:
        """See Tokenizer."""
        return self._leading_token_ids + self._encode_plain(text)

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer."""
        return self._backend.decode(list(ids), skip_special_tokens=False)

    def token_bytes(self, token_id: int) -> bytes:
        """See Tokenizer."""
        if token_id in self._added:
            return self._added[token_id].encode("utf-8", "replace")
        piece = self._backend.id_to_token(_checked_id(token_id))
        return b"" if piece is None else self._piece_bytes(piece)

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """See Tokenizer."""
        if self._chat_template is None:
            raise EngineError("this model has no chat template; use plain prompts")
        return self._encode_plain(self._chat_template.render(messages, add_generation_prompt))

    def _encode_plain(self, text: str) -> list[int]:
        return list(self._backend.encode(_encodable(text), add_special_tokens=False).ids)


class HubTokenizer:
    """mlx-lm's tokenizer wrapper (around a `transformers` tokenizer) seen through the protocol."""

    def __init__(self, wrapper: Any, table_hash: str) -> None:
        self._wrapper = wrapper
        self._hash = table_hash
        self._eos_token_ids = tuple(sorted(wrapper.eos_token_ids))
        self._added = {id_: token.content for id_, token in self._wrapper.added_tokens_decoder.items()}
        backend = getattr(self._wrapper, "backend_tokenizer", None)
        decoder = backend.decoder.__getstate__() if backend is not None and backend.decoder else b""
        self._piece_bytes = byte_level_piece_bytes if b"ByteLevel" in decoder else sentencepiece_piece_bytes

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """See Tokenizer."""
        return self._eos_token_ids

    @property
    def hash(self) -> str:
        """See Tokenizer."""
        return self._hash

    def encode(self, text: str) -> list[int]:
        """See Tokenizer."""
        return list(self._wrapper.encode(_encodable(text)))

    def decode(self, ids: Sequence[int]) -> str:
        """See Tokenizer."""
        return str(self._wrapper.decode(list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def token_bytes(self, token_id: int) -> bytes:
        """See Tokenizer."""
        if token_id in self._added:
            return str(self._added[token_id]).encode("utf-8", "replace")
        if _checked_id(token_id) >= len(self._wrapper):
            return b""
        piece = self._wrapper.convert_ids_to_tokens(token_id)
        return b"" if piece is None else self._piece_bytes(piece)

    def apply_chat_template(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> list[int]:
        """See Tokenizer."""
        if not self._wrapper.has_chat_template:
            raise EngineError("this model has no chat template; use plain prompts")
        try:
            ids = self._wrapper.apply_chat_template(
                [dict(message) for message in messages], add_generation_prompt=add_generation_prompt
            )
        except (jinja2.TemplateError, ValueError, TypeError, KeyError) as error:
            raise EngineError(f"the model's chat template fails on this conversation: {error}") from error
        return [int(token) for token in ids]


def table_hash(parts: Sequence[str | bytes]) -> str:
    """16 hex digits over `parts`, each with its length, so that no two lists of parts collide by joining."""
    digest = xxhash.xxh3_64()
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape") if isinstance(part, str) else part
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def _encodable(text: str) -> str:
    """`text` with lone surrogates replaced: they have no UTF-8 form and the backend rejects them."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _checked_id(token_id: int) -> int:
    if not 0 <= token_id < 2**32:
        raise EngineError(f"{token_id} is no token id; ids are whole numbers from 0")
    return token_id
