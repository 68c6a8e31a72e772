from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engine.errors import EngineError
from engine.kernels.invariant import cuda

on_cuda = pytest.mark.skipif(not cuda.available(), reason="needs a CUDA device")


@pytest.mark.skipif(cuda.available(), reason="has a CUDA device")
def test_without_a_cuda_device_the_kernels_say_so() -> None:
    with pytest.raises(EngineError, match="need MLX on a CUDA device"):
        cuda.linear_dense(mx.zeros((1, 32)), mx.zeros((4, 32)))


@pytest.mark.parametrize(
    ("rows", "weight", "sentence"),
    [
        (mx.zeros((1, 32)), mx.zeros((4, 64)), "rows of shape"),
        (mx.zeros((1, 40)), mx.zeros((4, 40)), "multiple of 32"),
        (mx.zeros((1, 32)), mx.zeros((4, 32), mx.float16), "give one type"),
        (mx.zeros((1, 32), mx.int32), mx.zeros((4, 32), mx.int32), "float32, float16 and bfloat16"),
    ],
)
def test_what_does_not_fit_is_named(rows: mx.array, weight: mx.array, sentence: str) -> None:
    with pytest.raises(EngineError, match=sentence):
        cuda.linear_dense(rows, weight)


def test_group_sizes_that_are_not_read_are_named() -> None:
    packed, scales, biases = mx.quantize(mx.zeros((4, 64)), 32, 4)
    with pytest.raises(EngineError, match="groups of 32 to 128"):
        cuda.linear_affine(mx.zeros((1, 64)), packed, scales, biases, bits=4, group_size=16)


@on_cuda
@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_row_keeps_its_bits_at_every_row_count(dtype: mx.Dtype) -> None:
    rows = mx.array(np.random.default_rng(0).standard_normal((70, 256)).astype(np.float32)).astype(dtype)
    weight = mx.array(np.random.default_rng(1).standard_normal((48, 256)).astype(np.float32)).astype(dtype)
    packed, scales, biases = mx.quantize(weight, 64, 4)
    alone = cuda.linear_affine(rows[:1], packed, scales, biases, bits=4, group_size=64)
    for count in range(1, 71):
        together = cuda.linear_affine(rows[:count], packed, scales, biases, bits=4, group_size=64)
        assert bytes(memoryview(together[:1].view(mx.uint8))) == bytes(memoryview(alone.view(mx.uint8)))
