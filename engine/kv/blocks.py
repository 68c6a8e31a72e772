"""Which blocks are free, owned or kept for reuse: counts and order of eviction, every operation O(1).

Owns block states and reference counts. Must not know tokens, rows or arrays.

A block is `free` -> `writing` (owned, not full) -> `full` (owned, all rows computed) -> `cached` (unowned,
its rows may be reused) -> `free`. Sharing raises the owner count and turns `cached` into `full` again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import StrEnum

from engine.errors import EngineError, SettingsError

BYTES_OF_DTYPE = {"float32": 4, "float16": 2, "bfloat16": 2}


class BlockState(StrEnum):
    """Where a block is in its life."""

    FREE = "free"
    WRITING = "writing"
    FULL = "full"
    CACHED = "cached"


class BlockAllocator:
    """Hands out block numbers 0 .. blocks_total - 1.

    When none is free, the block that has been cached longest is evicted; `on_evict(block)` is told first.
    Owners drop a sequence's last block first, so a child leaves the cache before its parent (leaf first).
    """

    def __init__(self, blocks_total: int, on_evict: Callable[[int], None]) -> None:
        if blocks_total < 1:
            raise SettingsError(f"K/V memory of {blocks_total} blocks holds nothing; give at least 1 block.")
        self.blocks_total = blocks_total
        self._on_evict = on_evict
        self._owners = [0] * blocks_total
        self._states = [BlockState.FREE] * blocks_total
        self._free = list(range(blocks_total - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """Blocks that `take` could hand out now: free and evictable ones."""
        return len(self._free) + len(self._cached)

    @property
    def cached(self) -> int:
        """Full blocks that nobody owns."""
        return len(self._cached)

    @property
    def used(self) -> int:
        """Blocks with an owner."""
        return self.blocks_total - self.available

    @property
    def free_blocks(self) -> tuple[int, ...]:
        """The free list, next block last."""
        return tuple(self._free)

    @property
    def cached_blocks(self) -> tuple[int, ...]:
        """Cached blocks, next to be evicted first."""
        return tuple(self._cached)

    def owners(self, block: int) -> int:
        """How many requests own the block."""
        return self._owners[block]

    def state(self, block: int) -> BlockState:
        """The block's state."""
        return self._states[block]

    def take(self) -> int:
        """A block for one new owner, to be written; evicts when none is free.

        Raises:
            EngineError: every block has an owner.
        """
        if self._free:
            block = self._free.pop()
        elif self._cached:
            block = next(iter(self._cached))
            self._on_evict(block)
            del self._cached[block]
        else:
            raise EngineError(
                f"all {self.blocks_total} K/V blocks are owned; finish or preempt a request, or give more."
            )
        self._owners[block] = 1
        self._states[block] = BlockState.WRITING
        return block

    def share(self, block: int) -> None:
        """One more owner of a block that is owned or cached."""
        if self._states[block] is BlockState.CACHED:
            del self._cached[block]
            self._states[block] = BlockState.FULL
        elif self._owners[block] == 0:
            raise AssertionError(f"block {block} is shared but it is free")
        self._owners[block] += 1

    def drop(self, block: int, *, keep: bool) -> bool:
        """One owner less; the last leaves it cached (`keep`, if full) or free. True when it is free now."""
        if self._owners[block] == 0:
            raise AssertionError(f"block {block} is dropped but nobody owns it")
        self._owners[block] -= 1
        if self._owners[block]:
            return False
        if not keep:
            self._states[block] = BlockState.FREE
            self._free.append(block)
            return True
        if self._states[block] is not BlockState.FULL:
            raise AssertionError(f"block {block} is to be cached but it is {self._states[block]}")
        self._states[block] = BlockState.CACHED
        self._cached[block] = None
        return False

    def discard(self, block: int) -> None:
        """Free a cached block ahead of its turn."""
        del self._cached[block]
        self._states[block] = BlockState.FREE
        self._free.append(block)

    def fill(self, block: int) -> None:
        """Every row of an owned block is computed."""
        if self._states[block] is not BlockState.WRITING:
            raise AssertionError(f"block {block} is filled but it is {self._states[block]}")
        self._states[block] = BlockState.FULL

    def reopen(self, block: int) -> None:
        """The only owner of a block writes into it again."""
        if self._owners[block] != 1:
            raise AssertionError(f"block {block} is reopened but it has {self._owners[block]} owners")
        self._states[block] = BlockState.WRITING


def blocks_for_bytes(
    memory_bytes: int, layers: int, kv_heads: int, head_size: int, dtype: str, block_size: int = 16
) -> int:
    """Blocks of `block_size` tokens, K and V of all layers, that fit into `memory_bytes`.

    Raises:
        SettingsError: the dtype is unknown or not even one block fits.
    """
    if dtype not in BYTES_OF_DTYPE:
        raise SettingsError(f"K/V dtype {dtype!r} is unknown; use one of {', '.join(BYTES_OF_DTYPE)}.")
    block_bytes = 2 * layers * kv_heads * head_size * block_size * BYTES_OF_DTYPE[dtype]
    if memory_bytes < block_bytes:
        raise SettingsError(
            f"{memory_bytes} bytes of K/V memory hold no block; one block of {block_size} tokens takes "
            f"{block_bytes} bytes."
        )
    return memory_bytes // block_bytes
