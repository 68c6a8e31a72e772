"""Hash functions of K/V rows: the graph's numbers are those of plain integers, on every type and shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from divtrace.errors import DivtraceError
from divtrace.recorder import multilinear
from divtrace.recorder.hashers import GraphHasher, HostHasher, choose_hasher
from divtrace.recorder.hashing import as_numpy, digest_rows, row_magnitudes
from divtrace.recorder.multilinear import MultilinearGraph, multilinear_hashes, multilinear_keys
from divtrace.trace.schema import HASH_VARIABLE
from engine.observer import LayerRows

DTYPES = (mx.float16, mx.bfloat16, mx.float32)


def by_definition(row: bytes) -> int:
    """The documented sum, in Python's own integers."""
    words = [int.from_bytes(row[at : at + 2], "little") for at in range(0, len(row), 2)]
    keys = [int(key) for key in multilinear_keys(len(words))]
    return (keys[0] + sum(key * word for key, word in zip(keys[1:], words, strict=True))) % 2**64


def device_rows(raw: bytes, rows: int, dtype: mx.Dtype) -> mx.array:
    """Rows of these bits, whatever numbers they stand for: (rows, 2, n)."""
    array = mx.array(np.frombuffer(raw, np.uint16)).view(dtype).reshape(rows, 2, -1)
    mx.eval(array)
    return array


def test_keys_are_the_stream_of_splitmix64_made_odd() -> None:
    keys = multilinear_keys(400)
    assert int(keys[0]) == 0xE220A8397B1DCDAF
    assert int(keys[1]) == 0x6E789E6AA1B965F4 | 1
    assert (keys[1:] % 2 == 1).all()
    assert len(set(keys.tolist())) == 401
    assert multilinear_keys(7).tolist() == keys[:8].tolist()


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(DTYPES), st.integers(1, 4), st.integers(1, 6), st.data())
def test_the_graph_gives_the_documented_sum_for_all_bit_patterns(
    dtype: mx.Dtype, rows: int, columns: int, data: st.DataObject
) -> None:
    row_bytes = 2 * columns * dtype.size
    raw = data.draw(st.binary(min_size=rows * row_bytes, max_size=rows * row_bytes))
    array = device_rows(raw, rows, dtype)
    graph = MultilinearGraph(array)
    expected = [by_definition(raw[row * row_bytes : (row + 1) * row_bytes]) for row in range(rows)]
    assert graph.hashes().tolist() == expected
    assert multilinear_hashes(as_numpy(array)).tolist() == expected
    on_host = row_magnitudes(as_numpy(array))
    assert np.isnan(graph.magnitudes()).tolist() == np.isnan(on_host).tolist()
    assert np.nan_to_num(graph.magnitudes(), nan=-1).tobytes() == np.nan_to_num(on_host, nan=-1).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_stays_visible_in_the_magnitude(dtype: mx.Dtype, value: float) -> None:
    array = mx.array([[[1.0, value, -2.0]], [[0.5, -3.0, 0.0]]]).astype(dtype)
    magnitudes = MultilinearGraph(array).magnitudes()
    assert magnitudes[0] == np.inf if value == value else np.isnan(magnitudes[0])
    assert magnitudes[1] == 3.0


@settings(max_examples=60, deadline=None)
@given(st.binary(min_size=24, max_size=24), st.integers(0, 11), st.integers(1, 65535))
def test_one_changed_word_is_never_missed(row: bytes, place: int, change: int) -> None:
    words = np.frombuffer(row, np.uint16)
    other = words.copy()
    other[place] ^= np.uint16(change)
    first, second = multilinear_hashes(np.stack([words, other]))
    assert first != second


def test_swapped_words_hash_differently() -> None:
    generator = np.random.default_rng(5)
    words = generator.integers(0, 65536, (200, 16)).astype(np.uint16)
    swapped = words[:, ::-1].copy()
    assert (multilinear_hashes(words) != multilinear_hashes(swapped)).all()


def test_long_forwards_are_hashed_in_pieces_to_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    array = mx.random.normal((7, 2, 8)).astype(mx.float16)
    mx.eval(array)
    whole = MultilinearGraph(array)
    monkeypatch.setattr(multilinear, "PIECE_WORDS", 3 * 16)
    pieces = MultilinearGraph(array)
    assert pieces.hashes().tolist() == whole.hashes().tolist() == multilinear_hashes(as_numpy(array)).tolist()
    assert pieces.magnitudes().tolist() == whole.magnitudes().tolist()


def layers_of(make: Callable[[npt.NDArray[np.float32]], Any], rows: int, sizes: tuple[int, ...]) -> list[LayerRows]:
    generator = np.random.default_rng(rows)
    shapes = [(rows, 2, size) for size in sizes]
    return [LayerRows(*(make(generator.standard_normal(shape, np.float32)) for _ in range(2))) for shape in shapes]


@pytest.mark.parametrize("rows", [0, 1, 5])
@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 8, 4)], ids=["equal layers", "unequal layers"])
def test_layers_hashed_together_are_hashed_row_by_row(rows: int, sizes: tuple[int, ...]) -> None:
    layers = layers_of(lambda array: mx.array(array).astype(mx.bfloat16), rows, sizes)
    hashed = GraphHasher().begin(layers, rows)()
    assert hashed.key_hash.shape == hashed.value_magnitude.shape == (rows, len(sizes))
    for layer, written in enumerate(layers):
        for side, hashes, magnitudes in (
            (written.keys, hashed.key_hash, hashed.key_magnitude),
            (written.values, hashed.value_hash, hashed.value_magnitude),
        ):
            assert hashes[:, layer].tolist() == GraphHasher().hash_rows(as_numpy(side))
            assert magnitudes[:, layer].tolist() == row_magnitudes(as_numpy(side)).tolist()
    assert hashed.digest.tolist() == digest_rows(hashed.key_hash, hashed.value_hash).tolist()


def test_rows_in_numpy_have_the_hash_that_they_have_on_the_device() -> None:
    on_device = GraphHasher().begin(layers_of(mx.array, 3, (4, 4)), 3)()
    on_host = GraphHasher().begin(layers_of(np.array, 3, (4, 4)), 3)()
    assert on_host.key_hash.tolist() == on_device.key_hash.tolist()
    assert on_host.digest.tolist() == on_device.digest.tolist()
    assert on_host.value_magnitude.tobytes() == on_device.value_magnitude.tobytes()


def test_the_host_hash_is_xxh3_of_every_row() -> None:
    layers = layers_of(mx.array, 3, (4, 4, 6))
    hashed = HostHasher().begin(layers, 3)()
    for layer, rows in enumerate(layers):
        for row in range(3):
            expected = xxhash.xxh3_64_intdigest(np.array(rows.values[row]).tobytes())
            assert int(hashed.value_hash[row, layer]) == expected


def test_the_hash_is_chosen_by_name_then_variable_then_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HASH_VARIABLE, raising=False)
    monkeypatch.setattr("divtrace.recorder.hashers.on_cpu", lambda: True)
    assert choose_hasher().name == "xxh3_64"
    monkeypatch.setattr("divtrace.recorder.hashers.on_cpu", lambda: False)
    assert choose_hasher().name == "multilinear_64"
    monkeypatch.setenv(HASH_VARIABLE, "xxh3_64")
    assert choose_hasher().name == "xxh3_64"
    assert choose_hasher("multilinear_64").name == "multilinear_64"
    with pytest.raises(DivtraceError, match="cannot be hashed with 'md5'; this version has xxh3_64 and multilinear_64"):
        choose_hasher("md5")
