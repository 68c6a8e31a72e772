"""The block allocator: states, counts and the order of eviction."""

from __future__ import annotations

import pytest

from engine.errors import EngineError
from engine.kv.blocks import BlockAllocator, BlockState


def allocator_of(blocks: int) -> tuple[BlockAllocator, list[int]]:
    evicted: list[int] = []
    return BlockAllocator(blocks, evicted.append), evicted


def test_a_block_goes_through_its_states() -> None:
    allocator, evicted = allocator_of(1)
    assert allocator.state(0) is BlockState.FREE
    assert allocator.take() == 0
    assert allocator.state(0) is BlockState.WRITING
    allocator.fill(0)
    assert allocator.state(0) is BlockState.FULL
    assert not allocator.drop(0, keep=True)
    assert allocator.state(0) is BlockState.CACHED
    allocator.share(0)
    assert (allocator.state(0), allocator.owners(0)) == (BlockState.FULL, 1)
    allocator.drop(0, keep=True)
    assert allocator.take() == 0
    assert evicted == [0]
    assert allocator.state(0) is BlockState.WRITING


def test_the_block_cached_longest_is_evicted_first() -> None:
    allocator, evicted = allocator_of(3)
    for block in (allocator.take(), allocator.take(), allocator.take()):
        allocator.fill(block)
    for block in (2, 0, 1):
        allocator.drop(block, keep=True)
    allocator.share(2)
    allocator.drop(2, keep=True)
    assert [allocator.take() for _ in range(3)] == [0, 1, 2]
    assert evicted == [0, 1, 2]


def test_free_blocks_go_before_cached_ones() -> None:
    allocator, evicted = allocator_of(2)
    allocator.take()
    allocator.fill(0)
    allocator.drop(0, keep=True)
    assert allocator.take() == 1
    assert not evicted


def test_only_the_last_owner_frees_a_block() -> None:
    allocator, _ = allocator_of(2)
    block = allocator.take()
    allocator.share(block)
    assert not allocator.drop(block, keep=False)
    assert (allocator.used, allocator.available) == (1, 1)
    assert allocator.drop(block, keep=False)
    assert (allocator.used, allocator.available) == (0, 2)


def test_misuse_of_a_block_is_named() -> None:
    allocator, _ = allocator_of(2)
    with pytest.raises(AssertionError, match="block 0 is dropped but nobody owns it"):
        allocator.drop(0, keep=False)
    with pytest.raises(AssertionError, match="block 0 is shared but it is free"):
        allocator.share(0)
    allocator.take()
    with pytest.raises(AssertionError, match="block 0 is to be cached but it is writing"):
        allocator.drop(0, keep=True)


def test_an_owned_pool_has_nothing_to_give() -> None:
    allocator, _ = allocator_of(1)
    allocator.take()
    with pytest.raises(EngineError, match="all 1 K/V blocks are owned"):
        allocator.take()
