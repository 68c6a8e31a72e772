"""Which cached block continues which: a tree of published blocks, and the blocks that are being computed.

Owns keys. Must not know owners, states or arrays. A key is (parent block, the block's token ids), compared in
full: a dict settles equal hashes by comparing the keys, so no two contents share one. A parent's number is
not given to another block while it has children: they leave the tree first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockKey:
    """What a full block holds: these tokens after those of `parent` (None: at the beginning)."""

    parent: int | None
    tokens: tuple[int, ...]


class PrefixCache:
    """The tree. `block_size` is in tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._blocks: dict[BlockKey, int] = {}
        self._keys: dict[int, BlockKey] = {}
        self._children: dict[int, set[int]] = {}
        self._pending: Counter[BlockKey] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, block: int) -> bool:
        return block in self._keys

    def lookup(self, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest published prefix of `tokens` that leaves at least one token to compute."""
        blocks: list[int] = []
        for first in range(0, self._reusable(tokens), self._block_size):
            block = self._blocks.get(self._key(blocks, tokens, first))
            if block is None:
                break
            blocks.append(block)
        return blocks

    def publish(self, key: BlockKey, block: int) -> bool:
        """Offer a full, computed block to others; False when another block already holds the same key."""
        if key in self._blocks:
            return self._blocks[key] == block
        if block in self._keys:
            raise AssertionError(f"block {block} is published under two keys")
        self._blocks[key] = block
        self._keys[block] = key
        if key.parent is not None:
            self._children.setdefault(key.parent, set()).add(block)
        return True

    def unpublish(self, block: int) -> None:
        """Take a block without children out of the tree."""
        if self._children.get(block):
            raise AssertionError(f"block {block} leaves the prefix cache before its children")
        key = self._keys.pop(block)
        del self._blocks[key]
        if key.parent is not None:
            siblings = self._children[key.parent]
            siblings.remove(block)
            if not siblings:
                del self._children[key.parent]

    def descendants(self, block: int) -> list[int]:
        """Blocks below `block`, children before their parents."""
        found: list[int] = []
        open_blocks = list(self._children.get(block, ()))
        while open_blocks:
            below = open_blocks.pop()
            found.append(below)
            open_blocks.extend(self._children.get(below, ()))
        return found[::-1]

    def key_of(self, block: int) -> BlockKey:
        """The key that a published block stands under."""
        return self._keys[block]

    def expect(self, key: BlockKey) -> None:
        """A request is computing the block of this key now."""
        self._pending[key] += 1

    def forget_expected(self, key: BlockKey) -> None:
        """That request published it, gave up, or lost its blocks."""
        self._pending[key] -= 1
        if not self._pending[key]:
            del self._pending[key]

    def is_next_block_pending(self, tokens: Sequence[int]) -> bool:
        """True when the first block that `lookup` misses, and could use, is being computed now."""
        blocks = self.lookup(tokens)
        first = len(blocks) * self._block_size
        return first < self._reusable(tokens) and self._key(blocks, tokens, first) in self._pending

    def check_integrity(self) -> None:
        """Raise AssertionError when keys, blocks and children disagree."""
        assert {key: block for block, key in self._keys.items()} == self._blocks, "keys and blocks disagree"
        linked = {(key.parent, block) for block, key in self._keys.items() if key.parent is not None}
        listed = {(parent, block) for parent, blocks in self._children.items() for block in blocks}
        assert linked == listed, "parents and children disagree"
        for block, key in self._keys.items():
            assert len(key.tokens) == self._block_size, f"published block {block} is not full"
            assert key.parent is None or key.parent in self._keys, f"block {block} hangs below an unpublished block"
        assert all(count > 0 for count in self._pending.values()), "a pending block has no request"

    @property
    def pending(self) -> Counter[BlockKey]:
        """A copy of what is being computed, with the number of requests computing it."""
        return Counter(self._pending)

    def _reusable(self, tokens: Sequence[int]) -> int:
        return (len(tokens) - 1) // self._block_size * self._block_size

    def _key(self, blocks: list[int], tokens: Sequence[int], first: int) -> BlockKey:
        parent = blocks[-1] if blocks else None
        return BlockKey(parent, tuple(tokens[first : first + self._block_size]))
