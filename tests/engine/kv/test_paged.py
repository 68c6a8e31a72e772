"""The paged store: sharing, copy-on-write, eviction, truncation, and what it refuses."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt
import pytest

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import EngineError, SettingsError
from engine.kv.arrays import ArrayBackend, MlxBackend, NumpyBackend
from engine.kv.blocks import blocks_for_bytes
from engine.kv.contiguous import ContiguousStore
from engine.kv.paged import PagedStore
from engine.kv.store import KVStore

HEADS, SIZE, BLOCK = 2, 4, 4
LAYERS = (0, 2)
Rows = npt.NDArray[np.float32]


@pytest.fixture(params=[NumpyBackend, MlxBackend], ids=["numpy", "mlx"])
def backend(request: pytest.FixtureRequest) -> ArrayBackend:
    made: ArrayBackend = request.param()
    return made


def rows_of(count: int, seed: int) -> Rows:
    return np.random.default_rng(seed).standard_normal((count, HEADS, SIZE)).astype(np.float32)


def compute(
    store: PagedStore, request_id: str, first: int, tokens: tuple[int, ...], step: int, proposed: int = 0
) -> Rows:
    """One step of one request; returns the key rows that it wrote in layer 0."""
    segment = Segment(request_id, SegmentKind.PREFILL, first, tokens, 0, 0, proposed_tokens=proposed)
    batch = Batch(step, (segment,))
    assert store.grow(request_id, segment.end_position)
    store.begin_step(batch)
    keys = rows_of(len(tokens), step)
    for layer in LAYERS:
        store.write(layer, keys + layer, -keys - layer)
        store.read(layer, 0)
    store.commit_step(batch)
    store.check_integrity()
    return keys


def keys_in_memory(store: PagedStore, request_id: str) -> bytes:
    return store.audit_read(0, request_id)[0].tobytes()


def test_a_prefix_is_shared_with_its_writers(backend: ArrayBackend) -> None:
    store = PagedStore(8, BLOCK, backend=backend)
    assert store.admit("a", range(10)).cached_tokens == 0
    keys = compute(store, "a", 0, tuple(range(10)), step=3)
    admission = store.admit("b", (*range(8), 50, 51))
    assert admission.cached_tokens == 8
    assert [(r.writer_request_id, r.writer_step, r.writer_row) for r in admission.reused] == [
        ("a", 3, row) for row in range(8)
    ]
    assert keys_in_memory(store, "b") == keys[:8].tobytes()
    assert store.state().blocks_used == 3
    compute(store, "b", 8, (50, 51), step=4)
    assert store.writers("b").tolist() == [[0, 3, row] for row in range(8)] + [[1, 4, 0], [1, 4, 1]]


def test_one_token_is_always_left_to_compute() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(8))
    compute(store, "a", 0, tuple(range(8)), step=0)
    assert store.cached_prefix_length(range(8)) == 4
    assert store.admit("b", range(8)).cached_tokens == 4
    assert store.cached_prefix_length(range(9)) == 8
    assert store.cached_prefix_length(()) == 0


def test_equal_blocks_behind_different_prefixes_are_told_apart() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", (1, 1, 1, 1, 7, 7, 7, 7))
    compute(store, "a", 0, (1, 1, 1, 1, 7, 7, 7, 7), step=0)
    assert store.cached_prefix_length((2, 2, 2, 2, 7, 7, 7, 7, 0)) == 0
    assert store.cached_prefix_length((7, 7, 7, 7, 0)) == 0


def test_a_fork_shares_until_either_writes(backend: ArrayBackend) -> None:
    store = PagedStore(8, BLOCK, backend=backend)
    store.admit("a", range(6))
    keys = compute(store, "a", 0, tuple(range(6)), step=0)
    assert store.fork("a", "b").cached_tokens == 6
    assert store.state().blocks_used == 2
    assert store.missing_blocks("b", 7) == 1
    child_row = compute(store, "b", 6, (90,), step=1)
    assert store.state().blocks_used == 3
    assert store.missing_blocks("a", 7) == 0
    parent_row = compute(store, "a", 6, (80,), step=2)
    assert keys_in_memory(store, "a") == np.concatenate([keys, parent_row]).tobytes()
    assert keys_in_memory(store, "b") == np.concatenate([keys, child_row]).tobytes()
    assert store.writers("b").tolist()[4:] == [[0, 0, 4], [0, 0, 5], [1, 1, 0]]


def test_a_step_that_would_write_into_a_shared_block_is_refused() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(6))
    compute(store, "a", 0, tuple(range(6)), step=0)
    store.fork("a", "b")
    batch = Batch(1, (Segment("b", SegmentKind.DECODE, 6, (1,), 0, 1),))
    with pytest.raises(EngineError, match="has room for 6 K/V rows but step 1 writes up to position 6; grow"):
        store.begin_step(batch)


def test_released_blocks_are_reused_until_they_are_evicted_leaf_first() -> None:
    store = PagedStore(4, BLOCK)
    store.admit("a", range(12))
    compute(store, "a", 0, tuple(range(12)), step=0)
    store.release("a")
    assert (store.state().blocks_used, store.state().blocks_cached) == (0, 3)
    store.admit("b", (99,) * 8)
    compute(store, "b", 0, (99,) * 8, step=1)
    assert store.cached_prefix_length(range(13)) == 8
    assert store.admit("c", range(13)).reused[7].writer_request_id == "a"
    assert not store.grow("c", 13)
    assert store.missing_blocks("c", 13) == 2
    assert store.free_blocks == 0
    store.check_integrity()


def test_without_a_prefix_cache_released_blocks_are_free() -> None:
    store = PagedStore(4, BLOCK, prefix_cache=False)
    store.admit("a", range(8))
    compute(store, "a", 0, tuple(range(8)), step=0)
    assert store.cached_prefix_length(range(9)) == 0
    assert not store.pending_prefix(range(9))
    store.release("a")
    assert (store.state().blocks_used, store.state().blocks_cached) == (0, 0)
    store.check_integrity()


def test_growth_that_does_not_fit_changes_nothing() -> None:
    store = PagedStore(3, BLOCK)
    store.admit("a", range(4))
    compute(store, "a", 0, tuple(range(4)), step=0)
    before = store.state()
    assert not store.grow("a", 13)
    assert store.state() == before
    assert store.token_capacity == 12
    assert store.grow("a", 12)


def test_single_flight_sees_the_block_that_another_request_computes() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(9))
    assert store.pending_prefix((*range(8), 50))
    assert store.pending_prefix((*range(4), 50))
    assert not store.pending_prefix(range(4)), "the whole of it may not be reused, so waiting is useless"
    assert not store.pending_prefix((5, 6, 7, 8, 9))
    compute(store, "a", 0, tuple(range(4)), step=0)
    assert store.pending_prefix((*range(8), 50))
    assert not store.pending_prefix((*range(4), 50)), "its part is cached now"
    compute(store, "a", 4, tuple(range(4, 9)), step=1)
    assert not store.pending_prefix((*range(8), 50))
    assert store.cached_prefix_length((*range(8), 50)) == 8


def test_a_request_that_leaves_is_waited_for_no_longer() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(9))
    store.release("a")
    assert not store.pending_prefix((*range(8), 50))


def test_proposals_are_published_only_once_they_are_committed() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(3))
    compute(store, "a", 0, (0, 1, 2), step=0)
    compute(store, "a", 3, (3, 4, 5, 6, 7), step=1, proposed=4)
    assert store.cached_prefix_length(range(9)) == 4
    compute(store, "a", 8, (8,), step=2)
    assert store.cached_prefix_length(range(9)) == 8


def test_rejected_rows_vanish_and_their_blocks_return(backend: ArrayBackend) -> None:
    store = PagedStore(8, BLOCK, backend=backend)
    store.admit("a", range(3))
    keys = compute(store, "a", 0, (0, 1, 2), step=0)
    verified = compute(store, "a", 3, (3, 4, 5, 6, 7, 8), step=1, proposed=5)
    assert store.state().blocks_used == 3
    store.truncate("a", 5)
    store.check_integrity()
    assert store.state().blocks_used == 2
    after = compute(store, "a", 5, (60,), step=2)
    assert keys_in_memory(store, "a") == np.concatenate([keys, verified[:2], after]).tobytes()
    assert store.writers("a").tolist()[3:] == [[0, 1, 0], [0, 1, 1], [0, 2, 0]]


def test_a_published_block_that_loses_rows_leaves_the_cache() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(8))
    compute(store, "a", 0, tuple(range(8)), step=0)
    store.truncate("a", 2)
    store.check_integrity()
    assert store.cached_prefix_length(range(9)) == 0
    compute(store, "a", 2, (70, 71), step=1)
    assert store.cached_prefix_length((0, 1, 70, 71, 0)) == 4


def test_a_shared_block_keeps_its_rows_when_one_owner_truncates() -> None:
    store = PagedStore(8, BLOCK)
    store.admit("a", range(8))
    keys = compute(store, "a", 0, tuple(range(8)), step=0)
    store.admit("b", range(9))
    store.truncate("a", 2)
    rewritten = compute(store, "a", 2, (70, 71), step=1)
    assert keys_in_memory(store, "b") == keys.tobytes()
    assert keys_in_memory(store, "a") == np.concatenate([keys[:2], rewritten]).tobytes()


def test_what_was_computed_after_a_duplicate_is_not_published_below_the_original() -> None:
    store = PagedStore(8, BLOCK)
    for name in "ab":
        store.admit(name, range(9))
    compute(store, "a", 0, tuple(range(4)), step=0)
    compute(store, "b", 0, tuple(range(8)), step=1)
    assert store.cached_prefix_length(range(9)) == 4
    compute(store, "a", 4, tuple(range(4, 8)), step=2)
    reused = store.admit("c", range(9)).reused
    assert {row.writer_request_id for row in reused} == {"a"}


def test_a_recomputed_request_has_new_writers() -> None:
    store = PagedStore(2, BLOCK)
    store.admit("a", range(5))
    compute(store, "a", 0, tuple(range(5)), step=0)
    store.release("a")
    store.admit("b", (9,) * 8)
    compute(store, "b", 0, (9,) * 8, step=1)
    store.release("b")
    assert store.admit("a", range(5)).cached_tokens == 0
    compute(store, "a", 0, tuple(range(5)), step=2)
    assert store.writers("a").tolist() == [[0, 2, row] for row in range(5)]
    assert store.request_names() == ["a", "b"]


def test_a_row_that_nobody_wrote_is_named_with_its_block() -> None:
    store = PagedStore(4, BLOCK)
    store.admit("a", range(5))
    store.grow("a", 6)
    batch = Batch(0, (Segment("a", SegmentKind.PREFILL, 0, tuple(range(5)), 0, 0),))
    store.begin_step(batch)
    store.write(0, rows_of(5, 0), rows_of(5, 0))
    with pytest.raises(EngineError, match=r"'a', layer 1: K/V of position 0 \(block 0\) was read but never"):
        store.read(1, 0)
    store.commit_step(batch)
    batch = Batch(1, (Segment("a", SegmentKind.DECODE, 5, (5,), 0, 1),))
    store.begin_step(batch)
    store.write(0, rows_of(1, 1), rows_of(1, 1))
    store.write(1, rows_of(1, 1), rows_of(1, 1))
    store.read(0, 0)
    with pytest.raises(EngineError, match=r"'a', layer 1: K/V of position 0 \(block 0\) was read but never"):
        store.read(1, 0)


def test_a_step_that_is_not_committed_leaves_no_rows() -> None:
    store = PagedStore(4, BLOCK)
    store.admit("a", range(5))
    store.grow("a", 5)
    store.begin_step(Batch(0, (Segment("a", SegmentKind.PREFILL, 0, (0, 1), 0, 0),)))
    store.write(0, rows_of(2, 0), rows_of(2, 0))
    batch = Batch(1, (Segment("a", SegmentKind.PREFILL, 2, (2,), 0, 0),))
    with pytest.raises(EngineError, match="has 0 K/V rows but step 1 writes from position 2"):
        store.begin_step(batch)


def test_a_kernel_reads_the_pool_in_place() -> None:
    store = PagedStore(6, BLOCK)
    store.admit("x", range(4))
    compute(store, "x", 0, tuple(range(4)), step=0)
    store.admit("a", range(20, 26))
    batch = Batch(1, (Segment("a", SegmentKind.PREFILL, 0, tuple(range(20, 26)), 0, 0),))
    store.grow("a", 6)
    store.begin_step(batch)
    store.write(0, rows_of(6, 1), -rows_of(6, 1))
    keys, values = store.pool(0)
    store.require_written(0, 0)
    assert keys.shape == (6 * BLOCK, HEADS, SIZE)
    assert keys[store.slots(0)].tobytes() == rows_of(6, 1).tobytes()
    assert values[store.slots(0)].tobytes() == (-rows_of(6, 1)).tobytes()
    assert np.array(store.read(0, 0)[0]).tobytes() == rows_of(6, 1).transpose(1, 0, 2)[None].tobytes()


def test_reads_of_scattered_blocks_stay_apart(backend: ArrayBackend) -> None:
    store = PagedStore(6, BLOCK, backend=backend)
    names = ("a", "b")
    keys: dict[str, list[Rows]] = {name: [] for name in names}
    for name in names:
        store.admit(name, (ord(name),))
    for first in (0, 4, 8):
        for name in names:
            keys[name].append(compute(store, name, first, (ord(name),) * (4 if first < 8 else 1), first))
    segments = tuple(Segment(n, SegmentKind.DECODE, 9, (1,), row, 1) for row, n in enumerate(names))
    assert all(store.grow(name, 10) for name in names)
    store.begin_step(Batch(20, segments))
    for layer in LAYERS:
        store.write(layer, rows_of(2, 20), rows_of(2, 20))
    reads = [store.read(0, index) for index in range(2)]
    for row, name in enumerate(names):
        expected = np.concatenate([*keys[name], rows_of(2, 20)[row : row + 1]]).transpose(1, 0, 2)[None]
        assert np.array(reads[row][0]).tobytes() == expected.tobytes()


def test_a_pool_on_a_gpu_cannot_be_read_in_place() -> None:
    store = PagedStore(2, BLOCK, backend=MlxBackend())
    store.admit("a", range(2))
    compute(store, "a", 0, (0, 1), step=0)
    with pytest.raises(EngineError, match="use read"):
        store.pool(0)


def test_a_write_on_a_gpu_changes_the_pool_in_place() -> None:
    """A pool that something else still refers to would be copied whole by each write."""
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    store = PagedStore(4096, block_size=16, backend=MlxBackend())
    rows = mx.ones((2, 4, 64))
    pool_bytes = 2 * 4096 * 16 * 4 * 64 * 4
    for name in "ab":
        store.admit(name, (1,))
    for step in range(4):
        segments = tuple(Segment(n, SegmentKind.DECODE, step, (1,), row, 1) for row, n in enumerate("ab"))
        assert all(store.grow(name, step + 1) for name in "ab")
        store.begin_step(Batch(step, segments))
        store.write(0, rows, rows)
        mx.eval([array for index in range(2) for array in store.read(0, index)])
        store.commit_step(Batch(step, segments))
    assert mx.get_peak_memory() - before < pool_bytes * 9 // 8


def test_both_stores_keep_to_the_contract() -> None:
    stores: list[KVStore] = [PagedStore(4, BLOCK), ContiguousStore()]
    for store in stores:
        assert store.admit("a", (1, 2)).cached_tokens == 0
        assert store.fork("a", "b").cached_tokens == 0
        assert store.cached_prefix_length((1, 2)) == 0
        store.check_integrity()


def test_blocks_are_counted_from_bytes() -> None:
    one_block = 2 * 30 * 3 * 64 * 16 * 4
    assert blocks_for_bytes(10 * one_block + 1, 30, 3, 64, "float32") == 10
    assert blocks_for_bytes(10 * one_block, 30, 3, 64, "bfloat16") == 20
    with pytest.raises(SettingsError, match=f"one block of 16 tokens takes {one_block} bytes"):
        blocks_for_bytes(one_block - 1, 30, 3, 64, "float32")
    with pytest.raises(SettingsError, match="'int8' is unknown"):
        blocks_for_bytes(one_block, 30, 3, 64, "int8")
    with pytest.raises(SettingsError, match="at least 1 block"):
        PagedStore(0)
