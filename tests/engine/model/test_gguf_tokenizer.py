"""A tokenizer built from the tables of a GGUF file gives the ids that its model was trained on."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.model.gguf_header import GgufHeader
from engine.model.gguf_tokenizer import build_tokenizer
from engine.model.tokenizer import TableTokenizer
from fixtures.tiny_gguf import BYTE_TOKENS

ODD_TEXTS = [
    "",
    " ",
    "The capital of France is",
    "12345 67, 8.9\n\n\n  10",
    "tabs\tand   runs    of spaces \n \r\n end ",
    "emoji 👩‍👩‍👧‍👦🏳️‍🌈 and flags 🇫🇷",
    "שלום עולם مرحبا ‏right to left",
    "e\u0301 and é, ﬁ, ½, 二〇二四年",
    "<|im_start|>user<|im_end|>",
    "don't DON'T we'll I'M",
    "\x00\x07\ufffd\U0010ffff",
]

CONTROL, USER_DEFINED = 3, 4


def byte_level(pre: str, pieces: list[str] | None = None, merges: list[str] | None = None, **more: Any) -> Any:
    """A header with all bytes, `pieces`, and two control tokens at the end."""
    tokens = [*BYTE_TOKENS, *(pieces or []), "<|im_start|>", "<|im_end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges or [],
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 2) + [CONTROL, CONTROL],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
    return GgufHeader(Path("tiny.gguf"), metadata | {f"tokenizer.{key}": value for key, value in more.items()}, ())


def pieces_of(tokenizer: TableTokenizer, text: str) -> list[str]:
    return [tokenizer.token_bytes(token).decode() for token in tokenizer.encode(text)]


def digit_merges() -> tuple[list[str], list[str]]:
    """Merges that join two and three equal digits, so that the cut between digits can be seen."""
    pieces = [digit * length for digit in "0123456789" for length in (2, 3)]
    merges = [f"{digit * left} {digit}" for left in (1, 2) for digit in "0123456789"]
    return pieces, merges


@pytest.mark.parametrize(
    ("pre", "expected"),
    [
        ("smollm", ["7", "7", "7", "7"]),
        ("qwen2", ["7", "7", "7", "7"]),
        ("llama-bpe", ["777", "7"]),
        ("gpt-2", ["77", "77"]),
    ],
)
def test_digits_are_cut_as_the_family_cuts_them(pre: str, expected: list[str]) -> None:
    tokenizer = build_tokenizer(byte_level(pre, *digit_merges(), **{"ggml.add_bos_token": False}))
    assert pieces_of(tokenizer, "7777") == expected


def test_a_space_joins_a_word_but_not_a_digit() -> None:
    merges = ["Ġ a", "Ġ 7"]
    tokenizer = build_tokenizer(byte_level("smollm", ["Ġa", "Ġ7"], merges))
    assert pieces_of(tokenizer, "a a 7") == ["a", " a", " ", "7"]
    qwen = build_tokenizer(byte_level("qwen2", ["Ġa", "Ġ7"], merges))
    assert pieces_of(qwen, "a a 7") == ["a", " a", " ", "7"]
    gpt2 = build_tokenizer(byte_level("gpt-2", ["Ġa", "Ġ7"], merges))
    assert pieces_of(gpt2, "a a 7") == ["a", " a", " 7"]


def test_only_families_that_compose_unicode_compose_it() -> None:
    decomposed = "e\u0301"
    assert build_tokenizer(byte_level("qwen2")).decode(build_tokenizer(byte_level("qwen2")).encode(decomposed)) == "é"
    smollm = build_tokenizer(byte_level("smollm"))
    assert smollm.decode(smollm.encode(decomposed)) == decomposed


def test_a_word_that_is_a_token_needs_no_merges_where_the_family_says_so() -> None:
    tokenizer = build_tokenizer(byte_level("llama-bpe", ["abc"], **{"ggml.add_bos_token": False}))
    assert pieces_of(tokenizer, "abc") == ["abc"]
    assert pieces_of(build_tokenizer(byte_level("smollm", ["abc"])), "abc") == ["a", "b", "c"]


@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "default"])
@pytest.mark.parametrize("text", ODD_TEXTS)
def test_text_comes_back_as_it_was(pre: str, text: str) -> None:
    tokenizer = build_tokenizer(byte_level(pre, *digit_merges(), **{"ggml.add_bos_token": False}))
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()


SMOLLM = build_tokenizer(byte_level("smollm", *digit_merges()))


@given(st.text())
def test_any_text_comes_back_as_it_was(text: str) -> None:
    ids = SMOLLM.encode(text)
    assert b"".join(SMOLLM.token_bytes(token) for token in ids) == text.encode()
    assert SMOLLM.decode(ids) == text


def test_control_tokens_are_one_id_and_keep_their_text() -> None:
    ids = SMOLLM.encode("a<|im_end|>b")
    assert len(ids) == 3
    assert ids[1] == SMOLLM.eos_token_ids[0]
    assert SMOLLM.token_bytes(ids[1]) == b"<|im_end|>"


def test_the_leading_token_is_there_exactly_when_the_file_or_the_family_asks() -> None:
    asked = build_tokenizer(byte_level("smollm", **{"ggml.add_bos_token": True}))
    assert asked.encode("a")[0] == 256
    assert build_tokenizer(byte_level("smollm")).encode("a") == [97]
    assert build_tokenizer(byte_level("llama-bpe")).encode("a")[0] == 256


def test_all_ways_to_end_a_turn_end_a_text() -> None:
    tokenizer = build_tokenizer(byte_level("smollm", **{"ggml.eot_token_id": 0, "ggml.eom_token_id": 256}))
    assert tokenizer.eos_token_ids == (0, 256, 257)


def test_the_hash_moves_with_each_table_and_with_nothing_else() -> None:
    base = build_tokenizer(byte_level("smollm", ["ab"], ["a b"])).hash
    assert build_tokenizer(byte_level("smollm", ["ab"], ["a b"])).hash == base
    others = [
        byte_level("gpt-2", ["ab"], ["a b"]),
        byte_level("smollm", ["ab"], []),
        byte_level("smollm", ["ac"], ["a c"]),
        byte_level("smollm", ["ab"], ["a b"], **{"ggml.add_bos_token": True}),
        byte_level("smollm", ["ab"], ["a b"], chat_template="{{ messages }}"),
    ]
    hashes = {build_tokenizer(header).hash for header in others}
    assert len(hashes) == len(others)
    assert base not in hashes


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ggml.pre": "tekken"}, "pre-tokenizer 'tekken' is not supported"),
        ({"ggml.model": "bert"}, "tokenizer kind 'bert' is not supported"),
        ({"ggml.model": 7}, "'tokenizer.ggml.model' must be text"),
        ({"ggml.tokens": ["a", "a"], "ggml.token_type": [1, 1]}, "lists a token twice"),
        ({"ggml.token_type": [1]}, "have 1 types"),
        ({"ggml.merges": ["a zz"]}, "tables are inconsistent"),
        ({"ggml.merges": ["ab"]}, "tables are inconsistent"),
        ({"ggml.merges": [1, 2]}, "must be a list of texts"),
        ({"ggml.eos_token_id": 10**6}, "'tokenizer.ggml.eos_token_id' is 1000000"),
        ({"ggml.eos_token_id": -1}, "'tokenizer.ggml.eos_token_id' is -1"),
        ({"chat_template": "{% for %}"}, "chat template does not compile"),
        ({"ggml.tokens": ["\udcff", "b"], "ggml.token_type": [1, 1]}, "inconsistent"),
    ],
)
def test_tables_that_cannot_be_trusted_are_refused_by_name(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(EngineError, match=reason):
        build_tokenizer(byte_level("smollm", **changes))


def test_missing_tables_are_refused_by_name() -> None:
    header = byte_level("smollm")
    for key in ("tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.ggml.merges"):
        rest = {name: value for name, value in header.metadata.items() if name != key}
        with pytest.raises(EngineError, match=f"'{key}' must be .* is missing"):
            build_tokenizer(GgufHeader(Path("tiny.gguf"), rest, ()))


def train_sentencepiece() -> sentencepiece.SentencePieceProcessor:
    words = [
        "the cat sat on the mat",
        "on that hat",
        "a fat rat ate that",
        "mat and cat and rat",
        "12 34 123",
    ]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(words * 3),
        model_writer=model,
        model_type="bpe",
        vocab_size=310,
        byte_fallback=True,
        character_coverage=1.0,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_header(processor: sentencepiece.SentencePieceProcessor) -> GgufHeader:
    ids = range(processor.get_piece_size())
    kinds = [
        6 if processor.is_byte(i) else 2 if processor.is_unknown(i) else 3 if processor.is_control(i) else 1
        for i in ids
    ]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [processor.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": [processor.get_score(i) for i in ids],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }
    return GgufHeader(Path("tiny.gguf"), metadata, ())


PROCESSOR = train_sentencepiece()
SENTENCEPIECE = build_tokenizer(sentencepiece_header(PROCESSOR))


@pytest.mark.parametrize("text", [*(t for t in ODD_TEXTS if t), "the cat sat on that mat", "  two leading", "ratatat"])
def test_a_sentencepiece_table_gives_the_ids_that_sentencepiece_gives(text: str) -> None:
    ids = SENTENCEPIECE.encode(text)
    assert ids[0] == PROCESSOR.bos_id()
    assert ids[1:] == PROCESSOR.encode(text)
    assert SENTENCEPIECE.decode(ids[1:]) == PROCESSOR.decode(ids[1:])


@given(st.text(alphabet="thecatsmorn ated12é👩"))
def test_any_text_gives_the_ids_that_sentencepiece_gives(text: str) -> None:
    assert SENTENCEPIECE.encode(text)[1:] == PROCESSOR.encode(text)


def test_the_bytes_of_sentencepiece_tokens_are_the_text() -> None:
    ids = SENTENCEPIECE.encode("the 👩 cat")[1:]
    assert b"".join(SENTENCEPIECE.token_bytes(token) for token in ids) == " the 👩 cat".encode()
