"""Does paged K/V memory add up? A full count of owners, states, keys and rows. Must not change anything."""

from __future__ import annotations

from collections import Counter

import numpy as np

from engine.kv.blocks import BlockAllocator, BlockState
from engine.kv.ledger import RowLedger
from engine.kv.prefix import PrefixCache
from engine.kv.sequence import PagedSequence


def check_paged(
    sequences: tuple[PagedSequence, ...],
    allocator: BlockAllocator,
    prefix: PrefixCache,
    ledger: RowLedger,
    block_size: int,
) -> None:
    """Raise AssertionError, naming the block or request, at the first thing that does not add up."""
    _check_owners(sequences, allocator)
    _check_states(allocator, prefix)
    prefix.check_integrity()
    for sequence in sequences:
        _check_sequence(sequence, allocator, prefix, ledger)
    expected = Counter(sequence.pending for sequence in sequences if sequence.pending is not None)
    assert expected == prefix.pending, "pending blocks and the requests computing them disagree"
    for block in allocator.free_blocks:
        rows = slice(block * block_size, (block + 1) * block_size)
        assert ledger.is_blank(rows), f"free block {block} still has written rows"


def _check_owners(sequences: tuple[PagedSequence, ...], allocator: BlockAllocator) -> None:
    owned = Counter(block for sequence in sequences for block in sequence.table)
    for block in range(allocator.blocks_total):
        assert allocator.owners(block) == owned[block], (
            f"block {block} counts {allocator.owners(block)} owners but {owned[block]} tables list it"
        )
    unowned = allocator.free_blocks + allocator.cached_blocks
    assert len(unowned) == len(set(unowned)), "a block is listed twice as free or cached"
    for block in unowned:
        assert not owned[block], f"block {block} is free or cached but somebody owns it"
    assert len(unowned) + len(owned) == allocator.blocks_total, "blocks leaked: neither owned, cached nor free"


def _check_states(allocator: BlockAllocator, prefix: PrefixCache) -> None:
    free, cached = set(allocator.free_blocks), set(allocator.cached_blocks)
    evicted_before: set[int] = set()
    for block in range(allocator.blocks_total):
        state = allocator.state(block)
        assert (state is BlockState.FREE) == (block in free), f"block {block} is {state} against the free list"
        assert (state is BlockState.CACHED) == (block in cached), f"block {block} is {state} against the cache"
        complete = state in (BlockState.FULL, BlockState.CACHED)
        assert complete or block not in prefix, f"block {block} is published but {state}"
        assert state is not BlockState.CACHED or block in prefix, f"block {block} is cached under no key"
    for block in allocator.cached_blocks:
        late = [below for below in prefix.descendants(block) if below not in evicted_before]
        assert not late, f"block {block} would be evicted before its child {late[0]}"
        evicted_before.add(block)


def _check_sequence(sequence: PagedSequence, allocator: BlockAllocator, prefix: PrefixCache, ledger: RowLedger) -> None:
    name, table = sequence.request_id, sequence.table
    assert len(table) == len(set(table)), f"request {name!r} lists a block twice"
    assert sequence.length <= sequence.room, f"request {name!r} has more rows than slots"
    slots = sequence.slots(sequence.length)
    if ledger.layers:
        complete = ledger.complete_layers(slots)
        assert complete.any() or not len(slots), f"request {name!r} has rows that nobody wrote"
    for index, block in enumerate(table):
        state = allocator.state(block)
        if index < sequence.full_blocks:
            assert state is BlockState.FULL, f"block {block} of request {name!r} is full but {state}"
        elif index >= sequence.covered_blocks:
            assert allocator.owners(block) == 1, f"blank block {block} of request {name!r} is shared"
            assert state is BlockState.WRITING, f"blank block {block} of request {name!r} is {state}"
            spare = np.arange(block * sequence.block_size, (block + 1) * sequence.block_size)
            assert ledger.is_blank(spare), f"block {block} of request {name!r} has rows behind its length"
    _check_published(sequence, prefix)


def _check_published(sequence: PagedSequence, prefix: PrefixCache) -> None:
    for index in range(sequence.published_blocks):
        block = sequence.table[index]
        assert block in prefix, f"block {block} of request {sequence.request_id!r} lost its key"
        expected = sequence.key_after(index, sequence.tokens)
        assert prefix.key_of(block) == expected, f"block {block} is published under tokens it does not hold"
