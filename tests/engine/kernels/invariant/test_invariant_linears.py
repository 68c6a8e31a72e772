from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.kernels.invariant import (
    LinearWeights,
    affine_weights,
    dense_weights,
    linear,
    linear_affine,
    linear_dense,
    most_threads,
)

Kernel = Callable[[np.ndarray], np.ndarray]
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16, 17, 25, 64, 130)


def random_rows(rows: int, size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, size)).astype(np.float32)


def numpy_of(array: mx.array) -> np.ndarray:
    return np.array(array.view(mx.uint16)) if array.dtype == mx.bfloat16 else np.array(array)


def packed_weights(
    bits: int, group_size: int, shape: tuple[int, int] = (21, 384), dtype: mx.Dtype = mx.float32
) -> tuple[LinearWeights, np.ndarray]:
    """Prepared affine weights, and the same weights dequantized by MLX in f32."""
    weight = mx.array(random_rows(*shape, seed=bits)).astype(dtype)
    packed, scales, biases = mx.quantize(weight, group_size, bits)
    dense = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size, bits)
    arrays = [numpy_of(array) for array in (packed, scales, biases)]
    return affine_weights(*arrays, bits=bits, group_size=group_size), np.array(dense)


def changed_row_counts(kernel: Kernel, rows: np.ndarray) -> list[int]:
    """Row counts at which some row's bytes differ from the row computed alone."""
    alone = [kernel(rows[i : i + 1]).tobytes() for i in range(len(rows))]
    return [
        count
        for count in range(1, len(rows) + 1)
        if any(row.tobytes() != expected for row, expected in zip(kernel(rows[:count]), alone, strict=False))
    ]


def split_sum_above_four_rows(weight: np.ndarray) -> Kernel:
    """What a GEMM with split-K does: correct, and a function of the row count."""
    half = weight.shape[1] // 2

    def kernel(x: np.ndarray) -> np.ndarray:
        if len(x) <= 4:
            return linear_dense(x, weight)
        return linear_dense(x[:, :half], weight[:, :half]) + linear_dense(x[:, half:], weight[:, half:])

    return kernel


@pytest.mark.parametrize("shape", [(7, 576), (64, 100), (5, 1536), (5, 2100)])
def test_a_dense_row_keeps_its_bits_at_every_row_count(shape: tuple[int, int]) -> None:
    weights = dense_weights(random_rows(*shape))
    assert changed_row_counts(lambda x: linear(x, weights), random_rows(130, shape[1], seed=1)) == []


@pytest.mark.parametrize(
    ("bits", "group_size", "shape"), [(4, 32, (9, 576)), (8, 64, (13, 1088)), (4, 128, (6, 2176)), (3, 32, (8, 96))]
)
def test_a_packed_row_keeps_its_bits_at_every_row_count(bits: int, group_size: int, shape: tuple[int, int]) -> None:
    weights, _ = packed_weights(bits, group_size, shape)
    assert changed_row_counts(lambda x: linear(x, weights), random_rows(130, shape[1], seed=1)) == []


def test_the_check_finds_a_kernel_that_depends_on_the_row_count() -> None:
    kernel = split_sum_above_four_rows(random_rows(7, 576))
    assert changed_row_counts(kernel, random_rows(8, 576, seed=1)) == [5, 6, 7, 8]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_a_row_depends_on_nothing_but_itself(data: st.DataObject) -> None:
    size, outputs = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 40))
    rows, index = data.draw(st.sampled_from(ROW_COUNTS)), data.draw(st.integers(0, 129))
    stranger = data.draw(st.sampled_from([0.0, np.nan, np.inf, -np.inf, 1e38, 1e-42]))
    weights = dense_weights(random_rows(outputs, size, seed=rows), random_rows(1, outputs)[0])
    row = random_rows(1, size, seed=index)
    company = np.full((rows, size), stranger, np.float32)
    company[index % rows] = row[0]
    threads = data.draw(st.integers(1, most_threads()))
    with np.errstate(all="ignore"):
        together = linear(company, weights, threads=threads)
    assert together[index % rows].tobytes() == linear(row, weights).tobytes()


@pytest.mark.parametrize("most_block_rows", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("threads", [1, None])
def test_blocks_and_threads_do_not_show_in_the_bits(most_block_rows: int, threads: int | None) -> None:
    weights, _ = packed_weights(4, 64, (301, 1024))
    x = random_rows(23, 1024)
    expected = linear(x, weights, threads=1, most_block_rows=1)
    assert linear(x, weights, threads=threads, most_block_rows=most_block_rows).tobytes() == expected.tobytes()


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("group_size", [32, 64, 128])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_packed_weights_give_the_bits_of_what_mlx_dequantizes(bits: int, group_size: int, dtype: mx.Dtype) -> None:
    weights, dense = packed_weights(bits, group_size, dtype=dtype)
    x = random_rows(7, 384, seed=5)
    assert linear(x, weights).tobytes() == linear_dense(x, dense).tobytes()


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_weights_and_rows_are_read_exactly(dtype: mx.Dtype) -> None:
    weight, x = (
        mx.array(random_rows(10, 70)).astype(dtype),
        mx.array(random_rows(3, 70, seed=1)).astype(dtype),
    )
    wide = linear_dense(np.array(x.astype(mx.float32)), np.array(weight.astype(mx.float32)))
    assert linear_dense(numpy_of(x), numpy_of(weight)).tobytes() == wide.tobytes()


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 700), st.integers(1, 9), st.integers(0, 1000))
def test_the_result_is_within_the_stated_bound_of_float64(size: int, rows: int, seed: int) -> None:
    x, weight = random_rows(rows, size, seed), random_rows(11, size, seed + 1)
    exact = x.astype(np.float64) @ weight.astype(np.float64).T
    roundings = size / 16 + 5
    bound = roundings * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(weight).T.astype(np.float64)) * 1.01
    assert (np.abs(linear_dense(x, weight) - exact) <= bound).all()


def test_a_nan_stays_in_its_row() -> None:
    weights = dense_weights(random_rows(6, 48))
    x = random_rows(5, 48)
    x[2, 7] = np.nan
    result = linear(x, weights)
    assert np.isnan(result[2]).all()
    assert not np.isnan(result[[0, 1, 3, 4]]).any()


def test_no_rows_give_no_outputs() -> None:
    assert linear(np.zeros((0, 48), np.float32), dense_weights(random_rows(6, 48))).shape == (0, 6)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: linear_dense(random_rows(2, 5), random_rows(3, 6)), "got rows of shape"),
        (
            lambda: linear_dense(random_rows(2, 6), random_rows(3, 6), np.zeros(4, np.float32)),
            "bias of shape",
        ),
        (lambda: linear_dense(random_rows(2, 6), random_rows(3, 6).astype(np.int8)), "cannot read weights"),
        (lambda: dense_weights(np.zeros(4, np.float32)), "shape"),
        (lambda: linear(random_rows(2, 6), dense_weights(random_rows(3, 6)), threads=0), "threads"),
        (
            lambda: linear_affine(
                random_rows(2, 64),
                np.zeros((3, 8), np.uint32),
                np.zeros((3, 3), np.float32),
                np.zeros((3, 3), np.float32),
                bits=4,
                group_size=32,
            ),
            "got scales",
        ),
        (
            lambda: affine_weights(
                np.zeros((3, 8), np.uint32), np.zeros((3, 2)), np.zeros((3, 2)), bits=7, group_size=32
            ),
            "7 bits",
        ),
    ],
)
def test_what_does_not_fit_is_named(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        call()
