"""Row arrays: both backends give the same bytes for slices, slots and blocks."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from engine.kv.arrays import ArrayBackend, BlockRows, MlxBackend, NumpyBackend, default_backend

BACKENDS: list[ArrayBackend] = [NumpyBackend(), MlxBackend()]
EVERY_BACKEND = pytest.mark.parametrize("backend", BACKENDS, ids=["numpy", "mlx"])
EVERY_DTYPE = pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])


@EVERY_BACKEND
@EVERY_DTYPE
@pytest.mark.parametrize("blocks", [(3, 0, 5), (2, 3, 4), (1,), ()])
def test_rows_of_blocks_are_read_in_their_order(
    backend: ArrayBackend, dtype: mx.Dtype, blocks: tuple[int, ...]
) -> None:
    rows = mx.arange(24 * 2 * 3).reshape(24, 2, 3).astype(dtype)
    array = backend.allocate(24, rows)
    array.write(slice(0, 24), rows)
    length = max(0, 4 * len(blocks) - 1)
    where = BlockRows(np.array(blocks, np.int64), 4, length)
    positions = [4 * block + offset for block in blocks for offset in range(4)][:length]
    read = array.read(backend.block_index(where))
    assert read.dtype == dtype
    assert read.shape == (1, 2, length, 3)
    if positions:
        assert mx.array_equal(read[0].transpose(1, 0, 2), rows[mx.array(positions)])


@EVERY_BACKEND
@EVERY_DTYPE
def test_rows_are_copied_inside_and_into_a_clone(backend: ArrayBackend, dtype: mx.Dtype) -> None:
    rows = mx.arange(4 * 2).reshape(4, 1, 2).astype(dtype)
    array = backend.allocate(4, rows)
    array.write(backend.index(np.array([2, 0])), rows[:2])
    clone = array.clone()
    array.copy(backend.index(np.array([2, 0])), backend.index(np.array([1, 3])))
    expected = mx.stack([rows[1], rows[0], rows[0], rows[1]])
    assert mx.array_equal(array.read(slice(0, 4))[0].transpose(1, 0, 2), expected)
    untouched = mx.stack([rows[1], mx.zeros_like(rows[0]), rows[0], mx.zeros_like(rows[0])])
    assert mx.array_equal(clone.read(slice(0, 4))[0].transpose(1, 0, 2), untouched)


@EVERY_BACKEND
def test_growth_keeps_rows(backend: ArrayBackend) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 1, 2)
    array = backend.allocate(3, rows)
    array.write(slice(0, 3), rows)
    array.resize(9)
    array.resize(2)
    array.write(slice(8, 9), rows[:1])
    assert array.bits(slice(0, 3)).tobytes() == rows.tobytes()
    assert array.bits(slice(8, 9)).tobytes() == rows[:1].tobytes()


@EVERY_BACKEND
def test_bits_of_bfloat16_are_exact(backend: ArrayBackend) -> None:
    rows = mx.array([[[1.5, -2.0]]], mx.bfloat16)
    array = backend.allocate(1, rows)
    array.write(slice(0, 1), rows)
    assert array.bits(slice(0, 1)).tolist() == [[[0x3FC0, 0xC000]]]


def test_a_cpu_keeps_rows_in_numpy() -> None:
    if mx.default_device().type == mx.DeviceType.cpu:
        assert isinstance(default_backend(), NumpyBackend)
    else:
        assert isinstance(default_backend(), MlxBackend)
