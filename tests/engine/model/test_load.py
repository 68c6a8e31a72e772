"""One name, three kinds of source, and one sentence for whatever is wrong with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from divtrace.model_store import fetch_smollm2
from engine.errors import EngineError, SettingsError
from engine.model.load import LoadedModel, load_model
from fixtures.tiny_directory import write_tiny_directory
from fixtures.tiny_gguf import write_tiny_gguf

TOKENS = mx.array([[72, 101, 108, 108, 111, 32, 200, 0, 255, 7]])


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_directory_gives_the_very_bits_of_its_model(tmp_path: Path, architecture: str, quantized: bool) -> None:
    original = write_tiny_directory(tmp_path / "m", architecture, quantized=quantized, layers=3)
    loaded = load_model(tmp_path / "m")
    assert loaded.weights_hash == original.weights_hash
    assert np.array(loaded.model(TOKENS)).tobytes() == np.array(original.model(TOKENS)).tobytes()
    assert (loaded.layers, loaded.kv_heads, loaded.head_size) == (3, 2, 16)
    assert (loaded.architecture, loaded.vocabulary_size) == (architecture, 257)
    assert loaded.quantization == ("affine 4 bit, groups of 32" if quantized else "none")


def test_the_dtype_is_that_of_everything_that_is_not_packed(tmp_path: Path) -> None:
    write_tiny_directory(tmp_path / "m", quantized=True, dtype="bfloat16")
    model = load_model(tmp_path / "m", "float16").model
    projection = model.layers[0].self_attn.q_proj
    assert projection.weight.dtype == mx.uint32
    assert {projection.scales.dtype, model.model.norm.weight.dtype} == {mx.float16}
    assert model(TOKENS).dtype == mx.float16


def test_the_tokenizer_of_a_directory_keeps_the_protocol(tmp_path: Path) -> None:
    write_tiny_directory(tmp_path / "m")
    tokenizer = load_model(tmp_path / "m").tokenizer
    text = "héllo 👩‍👩‍👧  שלום\n"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()
    assert tokenizer.eos_token_ids == (256,)
    assert tokenizer.token_bytes(256) == b"<|end|>"
    assert tokenizer.token_bytes(5000) == b""
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(chat) == "user:hi<|end|>assistant:"
    assert chat[len("user:hi")] == 256


def test_the_tokenizer_hash_of_a_directory_moves_with_its_files(tmp_path: Path) -> None:
    write_tiny_directory(tmp_path / "m")
    before = load_model(tmp_path / "m").tokenizer_hash
    assert load_model(tmp_path / "m").tokenizer_hash == before
    path = tmp_path / "m" / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    path.write_text(json.dumps(settings | {"chat_template": "{{ messages }}"}))
    assert load_model(tmp_path / "m").tokenizer_hash != before


def test_an_unknown_dtype_is_refused_before_anything_is_read() -> None:
    with pytest.raises(SettingsError, match="dtype 'int8' is unknown; choose one of float32"):
        load_model("no-such-file", "int8")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("no-such-file.gguf", "no such file or directory"),
        ("models/no-such-file.gguf", "no such file or directory"),
        ("/no/such/directory", "no such file or directory"),
        ("a/b/c", "no such file or directory"),
        ("", "no such file or directory"),
        ("~nobody-of-this-name/m.gguf", "no such file or directory"),
        ("a\0b", "no such file or directory"),
        ("x" * 5000, "."),
    ],
)
def test_a_source_that_is_nothing_is_refused_without_the_network(source: str, reason: str) -> None:
    with pytest.raises(EngineError, match=reason) as caught:
        load_model(source)
    assert len(str(caught.value)) < 400


def test_a_repository_that_cannot_be_reached_is_one_sentence() -> None:
    script = (
        "from engine.errors import EngineError\nfrom engine.model.load import load_model\n"
        "try:\n    load_model('nobody/no-such-model')\nexcept EngineError as error:\n    print(error)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=environment,
        check=True,
        timeout=120,
    )
    assert done.stdout.startswith("no model at 'nobody/no-such-model': there is no such file or directory, and")
    assert done.stdout.count("\n") == 1


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "notes.gguf").write_text("not a model")
    with pytest.raises(EngineError, match=r"notes\.gguf is not a GGUF file"):
        load_model(tmp_path / "notes.gguf")
    with pytest.raises(EngineError, match=r"holds no config\.json"):
        load_model(tmp_path)


def damage_nothing_but(path: Path, name: str, content: bytes) -> None:
    write_tiny_directory(path)
    (path / name).write_bytes(content)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"{"),
        ("config.json", b'{"model_type": "no-such-architecture"}'),
        ("config.json", b'{"model_type": "llama"}'),
        ("config.json", b"[]"),
        ("config.json", b"{}"),
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 100),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0" + b"{}" + bytes(14)),
        ("tokenizer.json", b"{"),
        ("tokenizer_config.json", b"["),
    ],
)
def test_a_damaged_directory_is_refused_with_one_sentence(tmp_path: Path, name: str, content: bytes) -> None:
    damage_nothing_but(tmp_path / "m", name, content)
    with pytest.raises(EngineError, match="mlx-lm cannot load the model at") as caught:
        load_model(tmp_path / "m")
    assert "\n" not in str(caught.value)


def test_a_directory_without_weights_or_tokenizer_is_refused(tmp_path: Path) -> None:
    for name in ("model.safetensors", "tokenizer.json"):
        write_tiny_directory(tmp_path / name)
        (tmp_path / name / name).unlink()
        with pytest.raises(EngineError, match="mlx-lm cannot load the model at"):
            load_model(tmp_path / name)


def test_code_that_comes_with_a_model_is_not_run(tmp_path: Path) -> None:
    write_tiny_directory(tmp_path / "m")
    proof = tmp_path / "was-run"
    (tmp_path / "m" / "custom.py").write_text(f"open({str(proof)!r}, 'w')")
    config = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(config | {"model_file": "custom.py"}))
    with pytest.raises(EngineError, match="mlx-lm cannot load"):
        load_model(tmp_path / "m")
    assert not proof.exists()


def test_the_same_weights_from_two_kinds_of_source_hash_alike(tmp_path: Path) -> None:
    from_file = load_model(write_tiny_gguf(tmp_path / "m.gguf", "qwen3", seed=5).path)
    write_tiny_directory(tmp_path / "m", "qwen3", seed=5)
    assert load_model(tmp_path / "m").weights_hash == from_file.weights_hash


def test_what_the_weights_do_not_say_is_in_the_configuration(tmp_path: Path) -> None:
    plain = load_model(write_tiny_gguf(tmp_path / "a.gguf").path)
    other = load_model(write_tiny_gguf(tmp_path / "b.gguf", metadata={"llama.rope.freq_base": 500000.0}).path)
    assert plain.weights_hash == other.weights_hash
    changed = {key for key in plain.configuration if plain.configuration[key] != other.configuration[key]}
    assert changed == {"rope_theta"}
    assert json.loads(json.dumps(plain.configuration)) == plain.configuration
    write_tiny_directory(tmp_path / "m")
    assert load_model(tmp_path / "m").configuration["model_type"] == "llama"


@pytest.fixture(scope="module")
def smollm2() -> LoadedModel:
    return load_model(fetch_smollm2())


@pytest.mark.model
def test_smollm2_knows_the_capital_of_france(smollm2: LoadedModel) -> None:
    ids = smollm2.tokenizer.encode("The capital of France is")
    best = int(mx.argmax(smollm2.model(mx.array([ids]))[0, -1]).item())
    assert smollm2.tokenizer.decode([best]) == " Paris"


@pytest.mark.model
def test_smollm2_is_described_as_it_is(smollm2: LoadedModel) -> None:
    shape = (smollm2.layers, smollm2.kv_heads, smollm2.head_size, smollm2.vocabulary_size)
    assert shape == (30, 3, 64, 49152)
    assert smollm2.quantization == "GGUF Q4_1x210 Q8_0x1"
    assert smollm2.tokenizer.eos_token_ids == (2,)


@pytest.mark.model
@pytest.mark.parametrize(
    "text", ["12345 67", "👩‍👩‍👧 🇫🇷", "  many   spaces \n\n\t", "שלום مرحبا", "e\u0301 ½", "<|im_end|>", ""]
)
def test_smollm2_gives_odd_text_back(smollm2: LoadedModel, text: str) -> None:
    tokenizer = smollm2.tokenizer
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert b"".join(tokenizer.token_bytes(token) for token in ids) == text.encode()


@pytest.mark.model
def test_smollm2_cuts_numbers_into_single_digits(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    pieces = [tokenizer.token_bytes(token) for token in tokenizer.encode("in 2024: 1234")]
    assert pieces == [b"in", b" ", b"2", b"0", b"2", b"4", b":", b" ", b"1", b"2", b"3", b"4"]


@pytest.mark.model
def test_the_chat_template_of_smollm2_uses_its_control_tokens(smollm2: LoadedModel) -> None:
    tokenizer = smollm2.tokenizer
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}])
    assert tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert ids.count(1) == 3
    assert ids.count(2) == 2
    closed = tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], add_generation_prompt=False)
    assert closed == ids[: len(closed)]
    assert tokenizer.decode(ids[len(closed) :]) == "<|im_start|>assistant\n"
