from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from engine.errors import EngineError
from engine.kernels.invariant import cuda, visible_keys
from engine.kernels.invariant.cuda_attention import device_keys, paged_attention

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


@on_cuda
@pytest.mark.parametrize(("head_size", "rows"), [(16, 5), (64, 5), (128, 5), (128, 520)])
def test_a_query_keeps_its_bits_in_every_launch(head_size: int, rows: int) -> None:
    random = np.random.default_rng(2)
    slots = random.permutation(2000).astype(np.int32)[None, :1000]
    keys, values = (
        mx.array(random.standard_normal((2000, 4, head_size)).astype(np.float32)).astype(mx.float16) for _ in range(2)
    )
    queries = mx.array(random.standard_normal((rows, 28, head_size)).astype(np.float32)).astype(mx.float16)
    lengths = np.arange(1000 - rows + 1, 1001)
    together = _attend(queries, keys, values, slots, lengths)
    for row in (0, rows // 2, rows - 1):
        alone = _attend(queries[row : row + 1], keys, values, slots, lengths[row : row + 1])
        assert bytes(memoryview(alone.view(mx.uint8))) == bytes(memoryview(together[row : row + 1].view(mx.uint8)))


def _attend(
    queries: mx.array, keys: mx.array, values: mx.array, slots: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]
) -> mx.array:
    visible = visible_keys(slots, np.zeros(len(lengths)), lengths, pool_slots=len(keys))
    on_device = device_keys(visible, queries.shape[1], keys.shape[1], queries.shape[2])
    return paged_attention(queries, keys, values, on_device, scale=queries.shape[2] ** -0.5)
