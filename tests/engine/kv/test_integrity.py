"""The integrity check finds each kind of damage; a check that cannot fail proves nothing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from engine.batch import Batch, Segment, SegmentKind
from engine.kv.paged import PagedStore
from engine.kv.prefix import BlockKey
from engine.kv.tables import BlockTables


def sound_store() -> PagedStore:
    """Request `a` holds blocks 0 (published) and 1 (half full) of four; block 2 and 3 are free."""
    store = PagedStore(4, block_size=2)
    store.admit("a", (1, 2, 3))
    store.grow("a", 3)
    batch = Batch(0, (Segment("a", SegmentKind.PREFILL, 0, (1, 2, 3), 0, 0),))
    store.begin_step(batch)
    store.write(0, np.ones((3, 1, 1), np.float32), np.ones((3, 1, 1), np.float32))
    store.commit_step(batch)
    store.check_integrity()
    return store


def lose_a_block(tables: BlockTables) -> None:
    tables.allocator._free.pop()


def free_an_owned_block(tables: BlockTables) -> None:
    tables.allocator._free.append(0)


def miscount_owners(tables: BlockTables) -> None:
    tables.allocator.share(0)


def write_a_free_block(tables: BlockTables) -> None:
    tables.ledger.record(np.array([7]), {0}, np.zeros((1, 3), np.int64))


def forget_rows(tables: BlockTables) -> None:
    tables.ledger.forget(np.array([1]))


def publish_under_other_tokens(tables: BlockTables) -> None:
    tables.prefix.unpublish(0)
    tables.prefix.publish(BlockKey(None, (8, 9)), 0)


def publish_a_block_that_is_not_full(tables: BlockTables) -> None:
    tables.prefix.publish(BlockKey(0, (3, 4)), 1)


def expect_for_nobody(tables: BlockTables) -> None:
    tables.prefix.expect(BlockKey(0, (3, 4)))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lose_a_block, "leaked"),
        (free_an_owned_block, "block 0 is free or cached but somebody owns it"),
        (miscount_owners, "block 0 counts 2 owners but 1 tables list it"),
        (write_a_free_block, "free block 3 still has written rows"),
        (forget_rows, "'a' has rows that nobody wrote"),
        (publish_under_other_tokens, "block 0 is published under tokens it does not hold"),
        (publish_a_block_that_is_not_full, "block 1 is published but writing"),
        (expect_for_nobody, "pending blocks and the requests computing them disagree"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_damage_is_found(damage: Callable[[BlockTables], None], message: str) -> None:
    store = sound_store()
    damage(store._tables)
    with pytest.raises(AssertionError, match=message):
        store.check_integrity()
