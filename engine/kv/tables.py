"""Block tables of all open requests: admission, growth, copy-on-write, publishing and release.

Owns which request holds which block; keeps states, prefix keys and the row ledger in step with it. Must not
know arrays: `copy_rows(source_block, target_block, rows)` is called for rows that have to be copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from engine.kv.blocks import BlockAllocator, BlockState
from engine.kv.faults import already_admitted, not_admitted
from engine.kv.integrity import check_paged
from engine.kv.ledger import RowLedger
from engine.kv.prefix import PrefixCache
from engine.kv.sequence import PagedSequence


class BlockTables:
    """Requests and their blocks. `caches` off: nothing is published, released blocks are free at once."""

    def __init__(
        self, blocks_total: int, block_size: int, caches: bool, copy_rows: Callable[[int, int, int], None]
    ) -> None:
        self.block_size = block_size
        self.allocator = BlockAllocator(blocks_total, self._forget_block)
        self.prefix = PrefixCache(block_size)
        self.ledger = RowLedger(blocks_total * block_size)
        self._caches = caches
        self._copy_rows = copy_rows
        self._sequences: dict[str, PagedSequence] = {}

    def sequence(self, request_id: str) -> PagedSequence:
        """An open request; EngineError when it is not open."""
        sequence = self._sequences.get(request_id)
        if sequence is None:
            raise not_admitted(request_id)
        return sequence

    def admit(self, request_id: str, number: int, tokens: Sequence[int]) -> PagedSequence:
        """Open a request and share the blocks of its longest published prefix."""
        sequence = self._open(request_id, number, tuple(tokens))
        blocks = self.cached_prefix(tokens)
        for block in blocks:
            self.allocator.share(block)
        sequence.table = blocks
        sequence.tokens = list(tokens[: len(blocks) * self.block_size])
        sequence.published_blocks = len(blocks)
        self._expect_next_block(sequence)
        return sequence

    def fork(self, parent_id: str, child_id: str, number: int) -> PagedSequence:
        """Open `child_id` on the blocks that hold the computed rows of `parent_id`."""
        parent = self.sequence(parent_id)
        child = self._open(child_id, number, parent.known_tokens)
        child.table = parent.table[: parent.covered_blocks]
        for block in child.table:
            self.allocator.share(block)
        child.tokens = list(parent.tokens)
        child.published_blocks, child.publishes = parent.published_blocks, parent.publishes
        self._expect_next_block(child)
        return child

    def missing_blocks(self, request_id: str, length: int) -> int:
        """Blocks that `grow(request_id, length)` would take: new ones, and a copy of a shared one."""
        sequence = self.sequence(request_id)
        if length <= sequence.length:
            return 0
        partial = sequence.partial_block
        copies = int(partial is not None and self.allocator.owners(partial) > 1)
        return max(0, -(-length // self.block_size) - len(sequence.table)) + copies

    def grow(self, request_id: str, length: int) -> bool:
        """Room below `length`, and the next row's block its own; False (nothing changed) when short."""
        sequence = self.sequence(request_id)
        if self.missing_blocks(request_id, length) > self.allocator.available:
            return False
        if length > sequence.length:
            self._own_partial_block(sequence)
            while sequence.room < length:
                sequence.table.append(self.allocator.take())
        return True

    def is_writable(self, sequence: PagedSequence) -> bool:
        """True when the next row's block belongs to this request alone and is not published."""
        partial = sequence.partial_block
        if partial is None:
            return True
        return self.allocator.owners(partial) == 1 and self.allocator.state(partial) is BlockState.WRITING

    def extend(self, sequence: PagedSequence, tokens: Iterable[int], settled: int) -> None:
        """Rows of `tokens` are computed; publish full blocks of the first `settled` positions."""
        full_before = sequence.full_blocks
        sequence.tokens.extend(tokens)
        for block in sequence.table[full_before : sequence.full_blocks]:
            self.allocator.fill(block)
        self._publish(sequence, settled)

    def truncate(self, request_id: str, length: int) -> None:
        """Drop rows at positions >= `length`, and the blocks behind the last row that stays."""
        sequence = self.sequence(request_id)
        del sequence.tokens[length:]
        sequence.published_blocks = min(sequence.published_blocks, sequence.full_blocks)
        self._expect_next_block(sequence)
        self._drop_all(sequence.table[sequence.covered_blocks :])
        del sequence.table[sequence.covered_blocks :]
        partial = sequence.partial_block
        if partial is not None and self.allocator.owners(partial) == 1:
            self._reclaim(partial, sequence.length % self.block_size)

    def release(self, request_id: str, reusable: bool = True) -> None:
        """Close a request; its published blocks stay cached until they are evicted.

        `reusable` off: those that nobody else owns leave the cache at once.
        """
        sequence = self.sequence(request_id)
        if reusable:
            self._publish(sequence, sequence.length)
        sequence.publishes = False
        self._expect_next_block(sequence)
        if not reusable:
            for block in reversed(sequence.table):
                if self.allocator.owners(block) == 1:
                    self._reclaim(block, 0)
        self._drop_all(sequence.table)
        del self._sequences[request_id]

    def cached_prefix(self, tokens: Sequence[int]) -> list[int]:
        """Blocks that `admit` would share."""
        return self.prefix.lookup(tokens) if self._caches else []

    def check_integrity(self) -> None:
        """Raise AssertionError at the first thing that does not add up."""
        check_paged(tuple(self._sequences.values()), self.allocator, self.prefix, self.ledger, self.block_size)

    def _open(self, request_id: str, number: int, known_tokens: tuple[int, ...]) -> PagedSequence:
        if request_id in self._sequences:
            raise already_admitted(request_id)
        sequence = PagedSequence(request_id, number, known_tokens, self.block_size, publishes=self._caches)
        self._sequences[request_id] = sequence
        return sequence

    def _publish(self, sequence: PagedSequence, settled: int) -> None:
        while sequence.publishes and sequence.published_blocks < settled // self.block_size:
            key = sequence.key_after(sequence.published_blocks, sequence.tokens)
            sequence.publishes = self.prefix.publish(key, sequence.table[sequence.published_blocks])
            sequence.published_blocks += int(sequence.publishes)
        self._expect_next_block(sequence)

    def _expect_next_block(self, sequence: PagedSequence) -> None:
        """Tell the prefix cache which block of known tokens this request computes next."""
        wanted = sequence.next_known_key if sequence.publishes else None
        if wanted == sequence.pending:
            return
        if sequence.pending is not None:
            self.prefix.forget_expected(sequence.pending)
        if wanted is not None:
            self.prefix.expect(wanted)
        sequence.pending = wanted

    def _drop_all(self, blocks: Sequence[int]) -> None:
        """One owner less of each, the last block first, so that children are evicted before their parents."""
        for block in reversed(blocks):
            if self.allocator.drop(block, keep=block in self.prefix):
                self.ledger.forget(self._slots_of(block))

    def _forget_block(self, block: int) -> None:
        self.prefix.unpublish(block)
        self.ledger.forget(self._slots_of(block))

    def _slots_of(self, block: int, kept_rows: int = 0) -> slice:
        return slice(block * self.block_size + kept_rows, (block + 1) * self.block_size)

    def _own_partial_block(self, sequence: PagedSequence) -> None:
        partial = sequence.partial_block
        if partial is None:
            return
        kept_rows = sequence.length % self.block_size
        if self.allocator.owners(partial) == 1:
            self._reclaim(partial, kept_rows)
            return
        own = self.allocator.take()
        self._copy_rows(partial, own, kept_rows)
        sequence.table[sequence.full_blocks] = own
        self._drop_all([partial])

    def _reclaim(self, block: int, kept_rows: int) -> None:
        """Forget the later rows of a block with one owner, after taking it out of the prefix cache.

        What hangs below it is cached and unowned: an owner of a child owns its parents too.
        """
        if block in self.prefix:
            for below in self.prefix.descendants(block):
                self._forget_block(below)
                self.allocator.discard(below)
            self.prefix.unpublish(block)
        if self.allocator.state(block) is BlockState.FULL:
            self.allocator.reopen(block)
        self.ledger.forget(self._slots_of(block, kept_rows))
