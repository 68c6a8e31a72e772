"""Builds a tokenizer from the tables inside a GGUF file. Must not know weights or models.

Source of the pre-tokenizer expressions: the `tokenizer.json` files of the model families, under the names
that llama.cpp's converter gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from engine.errors import EngineError
from engine.model.gguf_header import GgufHeader
from engine.model.tokenizer import (
    ChatTemplate,
    TableTokenizer,
    byte_level_piece_bytes,
    sentencepiece_piece_bytes,
    table_hash,
)

_CONTROL, _USER_DEFINED = 3, 4

_LETTERS_AND_SYMBOLS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _byte_level() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()])


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, plain])


def _three_digits() -> pre_tokenizers.PreTokenizer:
    return _split(_LETTERS_AND_SYMBOLS % r"\p{N}{1,3}")


def _qwen_digits() -> pre_tokenizers.PreTokenizer:
    return _split(_LETTERS_AND_SYMBOLS % r"\p{N}")


def _undeclared() -> pre_tokenizers.PreTokenizer:
    gpt2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
    return _split(r"[\p{P}\$\+<=>\^~\|]+", gpt2, r"\p{N}+", r"[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True)
class _Family:
    """How one family of byte-level BPE vocabularies cuts a text before merging."""

    pre_tokenizer: Callable[[], pre_tokenizers.PreTokenizer]
    ignores_merges: bool = False
    composes_unicode: bool = False
    leads_with_bos: bool = False


_LLAMA_3 = _Family(_three_digits, ignores_merges=True, leads_with_bos=True)
_SINGLE_DIGITS = _Family(_single_digits)
_GPT_2 = _Family(_byte_level)

_FAMILIES: Mapping[str, _Family] = {
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "command-r": _SINGLE_DIGITS,
    "gpt-2": _GPT_2,
    "olmo": _GPT_2,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "llama-v3": _LLAMA_3,
    "qwen2": _Family(_qwen_digits, composes_unicode=True),
    "default": _Family(_undeclared),
}


def build_tokenizer(header: GgufHeader) -> TableTokenizer:
    """The tokenizer of the model in `header`.

    Raises EngineError when its tables are missing or inconsistent, or when its kind or pre-tokenizer is not
    one of the known ones: a guess would give other ids than the model was trained on.
    """
    kind = header.text("tokenizer.ggml.model")
    tokens = header.strings("tokenizer.ggml.tokens")
    types = _token_types(header, len(tokens))
    if len(set(tokens)) != len(tokens):
        raise EngineError(f"{header.path}: the token table lists a token twice; get the file again")
    if kind == "gpt2":
        family = _family(header)
        backend, piece_bytes = _byte_level_backend(header, tokens, family), byte_level_piece_bytes
        leads_with_bos = family.leads_with_bos
    elif kind == "llama":
        backend, piece_bytes = _sentencepiece_backend(header, tokens), sentencepiece_piece_bytes
        leads_with_bos = True
    else:
        raise EngineError(
            f"{header.path}: tokenizer kind '{kind}' is not supported (only 'gpt2' and 'llama'); "
            "use the model's mlx-lm directory instead"
        )
    _add_special_tokens(backend, tokens, types)
    leading = header.flag("tokenizer.ggml.add_bos_token", leads_with_bos)
    return TableTokenizer(
        backend=backend,
        piece_bytes=piece_bytes,
        eos_token_ids=_eos_token_ids(header, len(tokens)),
        leading_token_ids=[_special_id(header, "bos", len(tokens))] if leading else [],
        chat_template=_chat_template(header, tokens),
        table_hash=_hash(header, tokens, types),
    )


def _family(header: GgufHeader) -> _Family:
    name = header.text("tokenizer.ggml.pre", "default")
    if name not in _FAMILIES:
        raise EngineError(
            f"{header.path}: pre-tokenizer '{name}' is not supported (only {', '.join(_FAMILIES)}); "
            "use the model's mlx-lm directory instead"
        )
    return _FAMILIES[name]


def _token_types(header: GgufHeader, tokens: int) -> list[int]:
    if "tokenizer.ggml.token_type" not in header.metadata:
        return [1] * tokens
    types = [int(kind) for kind in header.numbers("tokenizer.ggml.token_type")]
    if len(types) != tokens:
        raise EngineError(f"{header.path}: {tokens} tokens have {len(types)} types; get the file again")
    return types


def _byte_level_backend(header: GgufHeader, tokens: Sequence[str], family: _Family) -> tokenizers.Tokenizer:
    merges = [(left, right) for left, _, right in _split_merges(header)]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    backend = _backend(header, vocabulary, merges, ignore_merges=family.ignores_merges)
    backend.pre_tokenizer = family.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    if family.composes_unicode:
        backend.normalizer = normalizers.NFC()
    return backend


def _split_merges(header: GgufHeader) -> Iterator[tuple[str, str, str]]:
    return (merge.partition(" ") for merge in header.strings("tokenizer.ggml.merges"))


def _sentencepiece_backend(header: GgufHeader, tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """SentencePiece BPE: merges follow from the scores, unknown characters fall back to byte tokens."""
    scores = header.numbers("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise EngineError(f"{header.path}: {len(tokens)} tokens have {len(scores)} scores; get the file again")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    unknown = tokens[_special_id(header, "unknown", len(tokens), default=0)]
    merges = _merges_by_score(vocabulary, scores)
    backend = _backend(header, vocabulary, merges, byte_fallback=True, unk_token=unknown, fuse_unk=True)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", "▁")]
    ends: list[decoders.Decoder] = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    if header.flag("tokenizer.ggml.add_space_prefix", True):
        steps.insert(0, normalizers.Prepend("▁"))
        ends.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(steps)
    backend.decoder = decoders.Sequence(ends)
    return backend


def _merges_by_score(vocabulary: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a piece of two pieces, best score first, then by the ids of the halves."""
    ranked = []
    for piece, index in vocabulary.items():
        for cut in range(1, len(piece)):
            left, right = vocabulary.get(piece[:cut]), vocabulary.get(piece[cut:])
            if left is not None and right is not None:
                ranked.append((-scores[index], left, right, piece[:cut], piece[cut:]))
    return [(left, right) for *_, left, right in sorted(ranked)]


def _backend(
    header: GgufHeader, vocabulary: dict[str, int], merges: Sequence[tuple[str, str]], **options: object
) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=list(merges), **options))
    except Exception as error:  # The native library has no exception type of its own.
        raise EngineError(f"{header.path}: the tokenizer's tables are inconsistent: {error}") from error


def _add_special_tokens(backend: tokenizers.Tokenizer, tokens: Sequence[str], types: Sequence[int]) -> None:
    typed = list(zip(tokens, types, strict=True))
    control = [token for token, kind in typed if kind == _CONTROL and token]
    user_defined = [token for token, kind in typed if kind == _USER_DEFINED and token]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    backend.add_tokens([AddedToken(token, normalized=False, special=False) for token in user_defined])


def _special_id(header: GgufHeader, role: str, tokens: int, default: int | None = None) -> int:
    key = f"tokenizer.ggml.{role}_token_id"
    token_id = header.integer(key, default)
    if not 0 <= token_id < tokens:
        raise EngineError(f"{header.path}: '{key}' is {token_id}, outside the {tokens} tokens; get the file again")
    return token_id


def _eos_token_ids(header: GgufHeader, tokens: int) -> list[int]:
    roles = [role for role in ("eos", "eot", "eom") if f"tokenizer.ggml.{role}_token_id" in header.metadata]
    return [_special_id(header, role, tokens) for role in roles]


def _chat_template(header: GgufHeader, tokens: Sequence[str]) -> ChatTemplate | None:
    if "tokenizer.chat_template" not in header.metadata:
        return None
    roles = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    names = {
        name: tokens[_special_id(header, role, len(tokens))]
        for role, name in roles.items()
        if f"tokenizer.ggml.{role}_token_id" in header.metadata
    }
    return ChatTemplate(header.text("tokenizer.chat_template"), names)


def _hash(header: GgufHeader, tokens: Sequence[str], types: Sequence[int]) -> str:
    """Over the file's own tables, so that it does not move with the version of a library."""
    prefix = "tokenizer."
    large = {
        f"{prefix}ggml.tokens",
        f"{prefix}ggml.token_type",
        f"{prefix}ggml.merges",
        f"{prefix}ggml.scores",
    }
    settings = {key: value for key, value in header.metadata.items() if key.startswith(prefix) and key not in large}
    merges = header.metadata.get("tokenizer.ggml.merges", [])
    scores = header.metadata.get("tokenizer.ggml.scores", [])
    tables = ["\0".join(tokens), repr(list(types)), repr(merges), repr(scores)]
    return table_hash([*tables, repr(sorted(settings.items()))])
