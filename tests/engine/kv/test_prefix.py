"""The prefix cache: exact keys, and children that leave before their parents."""

from __future__ import annotations

import pytest

from engine.kv.prefix import BlockKey, PrefixCache

BOTH, LEFT, RIGHT = (1, 2), (3, 4), (5, 6)


def tree() -> PrefixCache:
    """Block 7 at the beginning, blocks 8 and 9 behind it."""
    cache = PrefixCache(block_size=2)
    assert cache.publish(BlockKey(None, BOTH), 7)
    assert cache.publish(BlockKey(7, LEFT), 8)
    assert cache.publish(BlockKey(7, RIGHT), 9)
    return cache


def test_a_lookup_follows_the_longest_prefix_that_leaves_a_token() -> None:
    cache = tree()
    assert cache.lookup((*BOTH, *LEFT, 0)) == [7, 8]
    assert cache.lookup((*BOTH, *LEFT)) == [7]
    assert cache.lookup((*BOTH, *RIGHT, 0)) == [7, 9]
    assert cache.lookup((*LEFT, *BOTH, 0)) == []
    cache.check_integrity()


def test_tokens_with_equal_hashes_are_told_apart() -> None:
    assert hash(-1) == hash(-2)
    cache = PrefixCache(block_size=1)
    cache.publish(BlockKey(None, (-1,)), 0)
    assert hash(BlockKey(None, (-1,))) == hash(BlockKey(None, (-2,)))
    assert cache.lookup((-2, 0)) == []


def test_the_first_block_under_a_key_stays() -> None:
    cache = tree()
    assert not cache.publish(BlockKey(None, BOTH), 3)
    assert cache.publish(BlockKey(None, BOTH), 7)
    assert cache.lookup((*BOTH, 0)) == [7]


def test_a_parent_cannot_leave_before_its_children() -> None:
    cache = tree()
    with pytest.raises(AssertionError, match="block 7 leaves the prefix cache before its children"):
        cache.unpublish(7)
    assert sorted(cache.descendants(7)) == [8, 9]
    for block in (*cache.descendants(7), 7):
        cache.unpublish(block)
    assert len(cache) == 0
    cache.check_integrity()


def test_descendants_come_before_their_parents() -> None:
    cache = tree()
    cache.publish(BlockKey(8, (0, 0)), 1)
    order = cache.descendants(7)
    assert order.index(1) < order.index(8)


def test_a_block_is_pending_as_long_as_anybody_computes_it() -> None:
    cache = tree()
    key = BlockKey(8, (9, 9))
    cache.expect(key)
    cache.expect(key)
    cache.forget_expected(key)
    assert cache.is_next_block_pending((*BOTH, *LEFT, 9, 9, 0))
    assert not cache.is_next_block_pending((*BOTH, *LEFT, 9, 9))
    cache.forget_expected(key)
    assert not cache.is_next_block_pending((*BOTH, *LEFT, 9, 9, 0))
