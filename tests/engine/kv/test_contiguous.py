"""The contiguous store: what goes in comes out, byte for byte, on both array backends."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import EngineError
from engine.kv.arrays import ArrayBackend, MlxBackend, NumpyBackend
from engine.kv.contiguous import ContiguousStore

HEADS, SIZE = 2, 4


@pytest.fixture(params=[NumpyBackend, MlxBackend], ids=["numpy", "mlx"])
def backend(request: pytest.FixtureRequest) -> ArrayBackend:
    made: ArrayBackend = request.param()
    return made


def batch_of(step: int, *parts: tuple[str, int, int]) -> Batch:
    """Segments of (request id, first position, rows), one after the other."""
    segments, row = [], 0
    for request_id, first, rows in parts:
        segments.append(Segment(request_id, SegmentKind.PREFILL, first, tuple(range(rows)), row, 0))
        row += rows
    return Batch(step, tuple(segments))


def rows_of(count: int, seed: int, dtype: type = np.float32) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((count, HEADS, SIZE)).astype(dtype)


def run_step(store: ContiguousStore, batch: Batch, keys: npt.NDArray[np.float32], layer: int = 0) -> None:
    for segment in batch.segments:
        assert store.grow(segment.request_id, segment.end_position)
    store.begin_step(batch)
    store.write(layer, keys, -keys)


def test_a_read_returns_the_bytes_of_every_step(backend: ArrayBackend) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    store.admit("b", (1,))
    first, second = rows_of(70, 1), rows_of(9, 2)
    run_step(store, batch_of(0, ("a", 0, 66), ("b", 0, 4)), first)
    store.commit_step(batch_of(0, ("a", 0, 66), ("b", 0, 4)))
    run_step(store, batch_of(1, ("b", 4, 2), ("a", 66, 7)), second)
    keys, values = store.read(0, 1)
    expected = np.concatenate([first[:66], second[2:]]).transpose(1, 0, 2)[None]
    assert keys.shape == (1, HEADS, 73, SIZE)
    assert np.array(keys).tobytes() == expected.tobytes()
    assert np.array(values).tobytes() == (-expected).tobytes()
    keys, _ = store.read(0, 0)
    assert np.array(keys).tobytes() == np.concatenate([first[66:], second[:2]]).transpose(1, 0, 2)[None].tobytes()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_lazy_rows_keep_their_dtype_and_bits(backend: ArrayBackend, dtype: mx.Dtype) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    rows = (mx.array(rows_of(5, 3)) * 2).astype(dtype)
    store.grow("a", 5)
    store.begin_step(batch_of(0, ("a", 0, 5)))
    store.write(0, rows, rows + 1)
    keys, values = store.read(0, 0)
    assert keys.dtype == dtype
    assert mx.array_equal(keys, rows.transpose(1, 0, 2)[None])
    assert mx.array_equal(values, (rows + 1).transpose(1, 0, 2)[None])


def test_layers_may_differ_in_heads_and_dtype(backend: ArrayBackend) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    store.grow("a", 2)
    store.begin_step(batch_of(0, ("a", 0, 2)))
    store.write(0, np.ones((2, 1, 8), np.float16), np.ones((2, 1, 4), np.float16))
    store.write(3, np.ones((2, 5, 2), np.float32), np.ones((2, 5, 2), np.float32))
    assert [array.shape for array in store.read(0, 0)] == [(1, 1, 2, 8), (1, 1, 2, 4)]
    assert store.read(3, 0)[0].shape == (1, 5, 2, 2)


def test_rows_of_another_shape_are_refused(backend: ArrayBackend) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    store.grow("a", 2)
    store.begin_step(batch_of(0, ("a", 0, 1)))
    store.write(0, rows_of(1, 0), rows_of(1, 0))
    store.commit_step(batch_of(0, ("a", 0, 1)))
    store.begin_step(batch_of(1, ("a", 1, 1)))
    with pytest.raises(EngineError, match="one shape and dtype"):
        store.write(0, rows_of(1, 0, np.float16), rows_of(1, 0, np.float16))


def test_truncated_rows_are_rewritten_by_their_next_writer(backend: ArrayBackend) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    run_step(store, batch_of(0, ("a", 0, 6)), rows_of(6, 1))
    store.commit_step(batch_of(0, ("a", 0, 6)))
    store.truncate("a", 4)
    run_step(store, batch_of(7, ("a", 4, 1)), rows_of(1, 2))
    keys, _ = store.read(0, 0)
    store.commit_step(batch_of(7, ("a", 4, 1)))
    expected = np.concatenate([rows_of(6, 1)[:4], rows_of(1, 2)]).transpose(1, 0, 2)[None]
    assert np.array(keys).tobytes() == expected.tobytes()
    assert store.writers("a").tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [0, 0, 3], [0, 7, 0]]
    store.check_integrity()


def test_writers_name_request_step_and_packed_row(backend: ArrayBackend) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    store.admit("b", (1,))
    batch = batch_of(5, ("b", 0, 2), ("a", 0, 1))
    run_step(store, batch, rows_of(3, 1))
    store.commit_step(batch)
    assert store.request_names() == ["a", "b"]
    assert store.writers("b").tolist() == [[1, 5, 0], [1, 5, 1]]
    assert store.writers("a").tolist() == [[0, 5, 2]]


def test_a_fork_copies_rows_and_their_writers(backend: ArrayBackend) -> None:
    store = ContiguousStore(backend=backend)
    store.admit("a", (1,))
    run_step(store, batch_of(0, ("a", 0, 3)), rows_of(3, 1))
    store.commit_step(batch_of(0, ("a", 0, 3)))
    store.fork("a", "b")
    batch = batch_of(1, ("a", 3, 1), ("b", 3, 1))
    run_step(store, batch, rows_of(2, 2))
    store.commit_step(batch)
    for row, name in enumerate("ab"):
        keys, _, writers = store.audit_read(0, name)
        assert keys.tobytes() == np.concatenate([rows_of(3, 1), rows_of(2, 2)[row : row + 1]]).tobytes()
        assert writers.tolist() == [[0, 0, 0], [0, 0, 1], [0, 0, 2], [row, 1, row]]


def test_growth_stops_at_the_token_capacity() -> None:
    store = ContiguousStore(token_capacity=10)
    store.admit("a", (1,))
    store.admit("b", (1,))
    assert store.grow("a", 6)
    assert not store.grow("b", 5)
    assert store.grow("b", 4)
    store.release("a")
    assert store.grow("b", 10)
    store.check_integrity()


def test_a_row_that_nobody_wrote_cannot_be_read() -> None:
    store = ContiguousStore()
    store.admit("a", (1,))
    store.grow("a", 4)
    store.begin_step(batch_of(0, ("a", 0, 2)))
    with pytest.raises(EngineError, match="request 'a', layer 0: K/V of position 0 was read but never written"):
        store.read(0, 0)
    with pytest.raises(EngineError, match="has 0 K/V rows but step 1 writes from position 2"):
        store.begin_step(batch_of(1, ("a", 2, 1)))


def test_misuse_is_told_in_a_sentence() -> None:
    store = ContiguousStore()
    with pytest.raises(EngineError, match="admit it first"):
        store.grow("a", 1)
    store.admit("a", (1,))
    with pytest.raises(EngineError, match="already has K/V memory"):
        store.admit("a", (1,))
    with pytest.raises(EngineError, match="grow it first"):
        store.begin_step(batch_of(0, ("a", 0, 1)))
