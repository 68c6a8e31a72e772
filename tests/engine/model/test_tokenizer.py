"""What every tokenizer promises, and what a chat template from a foreign file cannot do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Tokenizers
from tokenizers import decoders, models, normalizers

from engine.errors import EngineError
from engine.model.gguf_header import read_header
from engine.model.gguf_tokenizer import build_tokenizer
from engine.model.load import load_model
from engine.model.tokenizer import (
    ChatTemplate,
    Tokenizer,
    byte_level_piece_bytes,
    byte_of_symbol,
    sentencepiece_piece_bytes,
    table_hash,
)
from fixtures.tiny_directory import write_tiny_directory
from fixtures.tiny_gguf import write_tiny_gguf
from fixtures.tiny_models import ByteTokenizer

CONVERSATION = [{"role": "user", "content": "hi"}]


def from_gguf(tmp_path: Path) -> Tokenizer:
    return load_model(write_tiny_gguf(tmp_path / "m.gguf", layers=1).path).tokenizer


def from_directory(tmp_path: Path) -> Tokenizer:
    write_tiny_directory(tmp_path / "m", layers=1)
    return load_model(tmp_path / "m").tokenizer


def from_bytes(_: Path) -> Tokenizer:
    return ByteTokenizer()


every_kind = pytest.mark.parametrize("make", [from_gguf, from_directory, from_bytes])


@every_kind
def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(tmp_path: Path, make: Callable[[Path], Tokenizer]) -> None:
    tokenizer = make(tmp_path)
    for text in ("", "plain", "  1234\n\n", "héllo 👩‍👩‍👧 שלום"):
        ids = tokenizer.encode(text)
        assert all(type(token) is int for token in ids)
        assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
        assert tokenizer.decode(ids) == text


@every_kind
def test_a_part_of_a_character_decodes_to_the_replacement_character(
    tmp_path: Path, make: Callable[[Path], Tokenizer]
) -> None:
    tokenizer = make(tmp_path)
    first, second = tokenizer.encode("é")
    assert tokenizer.decode([first]) == "\ufffd"
    assert (tokenizer.token_bytes(first), tokenizer.token_bytes(second)) == (b"\xc3", b"\xa9")


@every_kind
def test_a_lone_surrogate_is_no_crash(tmp_path: Path, make: Callable[[Path], Tokenizer]) -> None:
    tokenizer = make(tmp_path)
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


@every_kind
def test_an_id_above_the_vocabulary_is_no_text_and_one_below_zero_an_error(
    tmp_path: Path, make: Callable[[Path], Tokenizer]
) -> None:
    tokenizer = make(tmp_path)
    assert tokenizer.token_bytes(100_000) == b""
    with pytest.raises(EngineError, match="-1 is no token id"):
        tokenizer.token_bytes(-1)


@every_kind
def test_the_hash_is_the_same_for_the_same_tables(tmp_path: Path, make: Callable[[Path], Tokenizer]) -> None:
    first, second = make(tmp_path), make(tmp_path)
    assert first.hash == second.hash
    assert len(first.hash) == 16
    assert int(first.hash, 16) >= 0


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no chat template; use plain prompts"):
        from_gguf(tmp_path).apply_chat_template(CONVERSATION)
    write_tiny_directory(tmp_path / "m", layers=1)
    (tmp_path / "m" / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(EngineError, match="no chat template; use plain prompts"):
        load_model(tmp_path / "m").tokenizer.apply_chat_template(CONVERSATION)


def test_a_template_sees_the_conversation_and_the_special_tokens() -> None:
    template = ChatTemplate(
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}",
        {"bos_token": "<s>", "eos_token": "</s>"},
    )
    assert template.render(CONVERSATION, add_generation_prompt=True) == "<s>user:hi</s>>"
    assert template.render(CONVERSATION, add_generation_prompt=False) == "<s>user:hi</s>"


def test_a_template_trims_its_own_lines_and_can_leave_a_loop() -> None:
    source = "{% for m in messages %}\n    {% if loop.index > 1 %}{% break %}{% endif %}\n{{ m.content }}{% endfor %}"
    assert ChatTemplate(source, {}).render(CONVERSATION * 3, add_generation_prompt=False) == "hi"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__['os'] }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ messages.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{{ undefined_function() }}",
        "{{ 1 / 0 }}",
    ],
)
def test_a_template_that_reaches_out_or_fails_is_one_sentence(source: str) -> None:
    with pytest.raises(EngineError, match="chat template fails on this conversation"):
        ChatTemplate(source, {}).render(CONVERSATION, add_generation_prompt=True)


def test_a_template_may_refuse_a_conversation() -> None:
    template = ChatTemplate("{{ raise_exception('roles must alternate') }}", {})
    with pytest.raises(EngineError, match="refuses this conversation: roles must alternate"):
        template.render(CONVERSATION, add_generation_prompt=True)


def test_a_template_is_not_told_the_date() -> None:
    source = "{% if strftime_now is defined %}{{ strftime_now('%Y') }}{% else %}no date{% endif %}"
    assert ChatTemplate(source, {}).render(CONVERSATION, add_generation_prompt=True) == "no date"


def test_every_byte_has_a_symbol_of_its_own() -> None:
    assert sorted(byte_of_symbol().values()) == list(range(256))
    assert byte_level_piece_bytes("Ġhé") == b" h\xe9"
    assert all(symbol.isprintable() and not symbol.isspace() for symbol in byte_of_symbol())


def test_sentencepiece_pieces_stand_for_bytes_and_spaces() -> None:
    assert sentencepiece_piece_bytes("<0xF0>") == b"\xf0"
    assert sentencepiece_piece_bytes("▁the") == b" the"
    assert sentencepiece_piece_bytes("<0xZZ>") == b"<0xZZ>"


def test_a_directory_with_byte_fallback_gives_single_bytes(tmp_path: Path) -> None:
    write_tiny_directory(tmp_path / "m", layers=1)
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {"▁": 256, "a": 257, "▁a": 258}
    backend = Tokenizers(models.BPE(vocab=vocabulary, merges=[("▁", "a")], byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.save(str(tmp_path / "m" / "tokenizer.json"))
    tokenizer = load_model(tmp_path / "m").tokenizer
    ids = tokenizer.encode("a a é")
    assert [tokenizer.token_bytes(token) for token in ids] == [b"a", b" a", b" ", b"\xc3", b"\xa9"]
    assert tokenizer.decode(ids) == "a a é"


def test_parts_of_a_hash_do_not_run_together() -> None:
    parts: list[list[Any]] = [["ab", "c"], ["a", "bc"], ["abc"], ["abc", ""], [b"abc", "d"]]
    assert len({table_hash(part) for part in parts}) == len(parts)


def test_a_gguf_tokenizer_needs_no_weights(tmp_path: Path) -> None:
    header = read_header(write_tiny_gguf(tmp_path / "m.gguf", layers=1).path)
    assert build_tokenizer(header).encode("a   b") == [97, 256, 32, 98]
