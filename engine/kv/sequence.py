"""One open request in paged K/V memory: its block table and what its rows hold. Must not know arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from engine.kv.arrays import BlockRows
from engine.kv.ledger import Slots
from engine.kv.prefix import BlockKey


@dataclass(slots=True)
class PagedSequence:
    """Blocks in position order (`table`); those behind the last computed row are the request's own and blank.

    `known_tokens` are those it was admitted with (others may wait for them), `tokens` those of computed rows.
    The first `published_blocks` stand in the prefix cache. `publishes` turns False when another request has
    published the same content: what follows was not computed after that block, so it may not hang below it.
    `pending` is the key that others see as being computed now.
    """

    request_id: str
    number: int
    known_tokens: tuple[int, ...]
    block_size: int
    publishes: bool
    table: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    published_blocks: int = 0
    pending: BlockKey | None = None

    @property
    def length(self) -> int:
        """Computed rows."""
        return len(self.tokens)

    @property
    def room(self) -> int:
        """Positions that have a slot."""
        return len(self.table) * self.block_size

    @property
    def covered_blocks(self) -> int:
        """Blocks that hold at least one computed row."""
        return -(-self.length // self.block_size)

    @property
    def full_blocks(self) -> int:
        """Blocks whose every row is computed."""
        return self.length // self.block_size

    @property
    def partial_block(self) -> int | None:
        """The block that holds computed rows and still has room; None when the last one is full."""
        return self.table[self.full_blocks] if self.length % self.block_size else None

    def rows(self, length: int) -> BlockRows:
        """Where positions 0 .. length - 1 lie."""
        blocks = np.array(self.table[: -(-length // self.block_size)], np.int64)
        return BlockRows(blocks, self.block_size, length)

    def slots(self, length: int) -> Slots:
        """Slots of positions 0 .. length - 1, int64."""
        return self.rows(length).slots

    def block_at(self, position: int) -> int:
        """The block of a position."""
        return self.table[position // self.block_size]

    @property
    def next_known_key(self) -> BlockKey | None:
        """Key of the first unpublished block that the known tokens fill; None when they fill no more."""
        if (self.published_blocks + 1) * self.block_size > len(self.known_tokens):
            return None
        return self.key_after(self.published_blocks, self.known_tokens)

    def key_after(self, blocks: int, tokens: Sequence[int]) -> BlockKey:
        """Key of the block behind the first `blocks`, holding what `tokens` (from position 0) say."""
        first = blocks * self.block_size
        content = tuple(tokens[first : first + self.block_size])
        return BlockKey(self.table[blocks - 1] if blocks else None, content)
