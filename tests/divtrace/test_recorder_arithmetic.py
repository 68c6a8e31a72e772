"""Hashes, magnitudes and logit statistics against slow definitions."""

from __future__ import annotations

import hypothesis.extra.numpy as hnp
import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from divtrace.recorder.hashers import HostHasher
from divtrace.recorder.hashing import as_numpy, digest_step, hash_rows, row_magnitudes
from divtrace.recorder.logits import are_finite, hash_logits, log_sum_exp, top_logits
from engine.observer import LayerRows

COARSE = st.sampled_from([np.float32(x) for x in (-2, -1, -0.0, 0.0, 0.5, 1, 3, np.inf, -np.inf, np.nan)])
FINITE = st.floats(-80, 80, width=32)


def rows_of(elements: st.SearchStrategy[float]) -> st.SearchStrategy[npt.NDArray[np.float32]]:
    shapes = st.tuples(st.integers(1, 3), st.integers(8, 160))
    return hnp.arrays(np.float32, shapes, elements=elements, fill=st.nothing())


def slow_top(row: npt.NDArray[np.float32], k: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (np.inf if np.isnan(row[i]) else -row[i], i))[:k]


@settings(max_examples=50, deadline=None)
@given(rows_of(COARSE), st.integers(1, 8))
def test_top_logits_are_exact_with_ties_to_the_lowest_id(logits: npt.NDArray[np.float32], k: int) -> None:
    top = top_logits(logits, k)
    for row, ids, values in zip(logits, top.ids, top.values, strict=True):
        expected = slow_top(row, k)
        assert ids.tolist() == expected
        assert values.tobytes() == row[expected].tobytes()


def test_top_logits_of_a_real_vocabulary_equal_a_full_sort() -> None:
    logits = np.random.default_rng(0).standard_normal((4, 49152), np.float32).round(2)
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :8]
    assert (top_logits(logits, 8).ids == expected).all()


@settings(max_examples=50, deadline=None)
@given(rows_of(FINITE))
def test_log_sum_exp_agrees_with_float64(logits: npt.NDArray[np.float32]) -> None:
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1, keepdims=True)
    expected = np.log(np.exp(wide - largest).sum(axis=1)) + largest[:, 0]
    np.testing.assert_allclose(log_sum_exp(logits), expected, rtol=0, atol=2e-6)


def test_log_sum_exp_of_a_row_without_mass_is_minus_infinity() -> None:
    assert log_sum_exp(np.full((1, 4), -np.inf, np.float32)).tolist() == [-np.inf]


@settings(max_examples=50, deadline=None)
@given(rows_of(COARSE | FINITE))
def test_finiteness_agrees_with_a_mask(logits: npt.NDArray[np.float32]) -> None:
    assert are_finite(logits) == np.isfinite(logits).all()


def test_huge_finite_logits_whose_sum_overflows_are_finite() -> None:
    assert are_finite(np.full((1, 4), np.float32(3e38)))


def test_a_row_of_a_strided_view_hashes_as_its_own_bytes() -> None:
    block = np.random.default_rng(1).standard_normal((6, 4, 8), np.float32)
    view = block[::2, 1:3]
    assert hash_rows(view) == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in view]
    logits = block.reshape(6, 32)[:, ::2]
    assert hash_logits(logits) == [xxhash.xxh3_64_intdigest(row.tobytes()) for row in logits]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_device_arrays_hash_as_their_own_bytes(dtype: mx.Dtype) -> None:
    array = mx.random.normal((3, 2, 8), dtype=dtype)
    mx.eval(array)
    raw = bytes(memoryview(array))
    row_bytes = len(raw) // 3
    expected = [xxhash.xxh3_64_intdigest(raw[row * row_bytes : (row + 1) * row_bytes]) for row in range(3)]
    assert hash_rows(as_numpy(array)) == expected
    magnitudes = np.array(mx.abs(array).reshape(3, -1).max(axis=1).astype(mx.float32))
    assert row_magnitudes(as_numpy(array)).tobytes() == magnitudes.tobytes()


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_bfloat16_rows_keep_what_is_not_finite(value: float) -> None:
    array = mx.array([[1.0, value], [0.5, -3.0]]).astype(mx.bfloat16)
    magnitudes = row_magnitudes(as_numpy(array))
    assert not np.isfinite(magnitudes[0])
    assert magnitudes[1] == 3.0


def test_layers_of_different_widths_are_hashed_like_equal_ones() -> None:
    generator = np.random.default_rng(2)
    layers = [
        LayerRows(generator.standard_normal((2, 1, width)), generator.standard_normal((2, 1, width)))
        for width in (4, 4, 8)
    ]
    together = HostHasher().begin(layers, 2)()
    for layer, written in enumerate(layers):
        assert together.key_hash[:, layer].tolist() == hash_rows(written.keys)
        assert together.value_magnitude[:, layer].tolist() == row_magnitudes(written.values).tolist()
    first_two = HostHasher().begin(layers[:2], 2)()
    assert (first_two.key_hash == together.key_hash[:, :2]).all()


def test_digests_are_the_documented_hash_of_hashes() -> None:
    generator = np.random.default_rng(3)
    layers = [LayerRows(generator.standard_normal((2, 8)), generator.standard_normal((2, 8))) for _ in range(3)]
    hashed = HostHasher().begin(layers, 2)()
    first = b"".join(int(h).to_bytes(8, "little") for h in (*hashed.key_hash[0], *hashed.value_hash[0]))
    assert int(hashed.digest[0]) == xxhash.xxh3_64_intdigest(first)
    joined = b"".join(int(h).to_bytes(8, "little") for h in hashed.digest)
    assert digest_step(hashed.digest) == xxhash.xxh3_64_intdigest(joined)
