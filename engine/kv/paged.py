"""Paged K/V memory: blocks of tokens in one pool a layer, shared by prefix, copied on write.

Owns the pools and the step under way; who holds which block is `tables`' business. Must not know schedules or
kernels: it answers what fits and what is cached, who waits for it is the scheduler's choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.errors import EngineError
from engine.kv.arrays import ArrayBackend, MlxRows, NumpyRows, RowArray, default_backend
from engine.kv.faults import never_written, no_room, not_next_position
from engine.kv.names import RequestNumbers, reused_rows
from engine.kv.sequence import PagedSequence
from engine.kv.step import StepSlots, map_step
from engine.kv.store import Admission, StoreState
from engine.kv.tables import BlockTables


@dataclass(frozen=True, slots=True)
class _LayerPool:
    keys: RowArray
    values: RowArray


class PagedStore:
    """K/V memory of `blocks_total` blocks of `block_size` tokens, behind the `KVStore` protocol.

    `prefix_cache` off: nothing is published, released blocks are free at once. `backend` says where rows lie.
    """

    def __init__(
        self,
        blocks_total: int,
        block_size: int = 16,
        prefix_cache: bool = True,
        backend: ArrayBackend | None = None,
    ) -> None:
        self._tables = BlockTables(blocks_total, block_size, prefix_cache, self._copy_rows)
        self._ledger = self._tables.ledger
        self._backend = backend or default_backend()
        self._numbers = RequestNumbers()
        self._pools: dict[int, _LayerPool] = {}
        self._step: StepSlots | None = None

    # Requests: open, grow, shrink, close.

    def admit(self, request_id: str, tokens: Sequence[int]) -> Admission:
        """Open a request that begins with `tokens` and share the blocks of its longest cached prefix."""
        return self._admission(self._tables.admit(request_id, self._numbers.number_of(request_id), tokens))

    def fork(self, parent_id: str, child_id: str) -> Admission:
        """Open `child_id` on the computed rows of `parent_id`; a partial block is copied when written."""
        return self._admission(self._tables.fork(parent_id, child_id, self._numbers.number_of(child_id)))

    def grow(self, request_id: str, length: int) -> bool:
        """Make room for positions below `length`, and make the next row's block the request's own.

        Takes `missing_blocks` blocks and evicts cached ones where none is free. False, and nothing changed,
        when that many cannot be had.
        """
        return self._tables.grow(request_id, length)

    def can_grow(self, lengths: Mapping[str, int]) -> bool:
        """True when all of these requests could grow to their lengths together; changes nothing."""
        return sum(self.missing_blocks(name, length) for name, length in lengths.items()) <= self.free_blocks

    def can_admit(self, tokens: Sequence[int], length: int) -> bool:
        """True when `admit(..., tokens)` and then `grow` to `length` would succeed now; changes nothing."""
        shared = self._tables.cached_prefix(tokens)
        unowned = sum(1 for block in shared if self._tables.allocator.owners(block) == 0)
        return self.blocks_for(length) - len(shared) <= self.free_blocks - unowned

    def truncate(self, request_id: str, length: int) -> None:
        """Drop rows at positions >= `length`, and the blocks (grown ones too) behind the last row that stays.

        A block that others own keeps its rows for them. A published block that loses rows leaves the cache.
        """
        self._tables.truncate(request_id, length)

    def release(self, request_id: str, reusable: bool = True) -> None:
        """Close a request; its full blocks stay cached until they are evicted.

        `reusable` off: those that nobody else owns leave the cache (their rows may hold NaN).
        """
        self._tables.release(request_id, reusable)

    # One step: map, write, read, commit.

    def begin_step(self, batch: Batch) -> None:
        """Check that every segment continues its request on blocks of its own, and map its slots."""
        rows = []
        for segment in batch.segments:
            sequence = self._tables.sequence(segment.request_id)
            if segment.first_position != sequence.length:
                raise not_next_position(sequence.request_id, sequence.length, batch.step, segment.first_position)
            writable = self._tables.is_writable(sequence)
            if segment.end_position > sequence.room or not writable:
                room = sequence.room if writable else sequence.length
                raise no_room(sequence.request_id, room, batch.step, segment.end_position)
            rows.append(sequence.rows(segment.end_position))
        self._step = map_step(batch, rows, self._ledger, self._backend)

    def write(self, layer: int, keys: Any, values: Any) -> None:
        """Store K and V of all packed rows, (packed_rows, kv_heads, head_size) each: one scatter an array."""
        step = self._current_step()
        pool = self._pools.get(layer)
        if pool is None:
            allocate = self._backend.allocate
            pool = _LayerPool(allocate(self.token_capacity, keys), allocate(self.token_capacity, values))
            self._pools[layer] = pool
        pool.keys.write(step.write_index, keys)
        pool.values.write(step.write_index, values)
        step.written_layers.add(layer)

    def read(self, layer: int, segment_index: int) -> tuple[Any, Any]:
        """K and V of the segment's request: two mx.arrays (1, kv_heads, end_position, head_size)."""
        self.require_written(layer, segment_index)
        index = self._current_step().segments[segment_index].index
        pool = self._pools[layer]
        return pool.keys.read(index), pool.values.read(index)

    def require_written(self, layer: int, segment_index: int) -> None:
        """Raise EngineError naming the first row of the segment's context that nobody wrote in `layer`."""
        step = self._current_step()
        mapped = step.segments[segment_index]
        if layer in step.written_layers and mapped.is_readable(layer):
            return
        sequence = self._tables.sequence(step.batch.segments[segment_index].request_id)
        gap = self._ledger.first_gap(layer, mapped.slots[: mapped.first_position])
        position = mapped.first_position if gap is None else gap
        raise never_written(sequence.request_id, layer, position, sequence.block_at(position))

    def slots(self, segment_index: int) -> npt.NDArray[np.int64]:
        """Slots of the segment's positions 0 .. end_position - 1, for kernels that read `pool` in place."""
        return self._current_step().segments[segment_index].slots

    def pool(self, layer: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """A layer's keys and values in place, numpy (blocks_total * block_size, kv_heads, head_size).

        Call `require_written` first. bfloat16 comes as uint16. EngineError when K/V lies elsewhere.
        """
        pool = self._pools.get(layer)
        if pool is None or not isinstance(pool.keys, NumpyRows) or not isinstance(pool.values, NumpyRows):
            raise EngineError(f"layer {layer} has no K/V rows in numpy memory; use read() instead.")
        return pool.keys.array, pool.values.array

    def device_pool(self, layer: int) -> tuple[mx.array, mx.array]:
        """A layer's keys and values in place, (blocks_total * block_size, kv_heads, head_size) on the device.

        Call `require_written` first, and hold neither beyond the step: a write then copies all rows. EngineError when
        K/V lies elsewhere.
        """
        pool = self._pools.get(layer)
        if pool is None or not isinstance(pool.keys, MlxRows) or not isinstance(pool.values, MlxRows):
            raise EngineError(f"layer {layer} has no K/V rows on the device; use read() instead.")
        return pool.keys.array, pool.values.array

    def commit_step(self, batch: Batch) -> None:
        """Note who wrote the step's rows, and publish blocks that are full of committed tokens."""
        step = self._current_step()
        writers = np.empty((batch.packed_rows, 3), np.int64)
        writers[:, 1], writers[:, 2] = batch.step, np.arange(batch.packed_rows)
        for segment in batch.segments:
            packed = slice(segment.first_row, segment.first_row + segment.rows)
            writers[packed, 0] = self._tables.sequence(segment.request_id).number
        self._ledger.record(step.write_slots, step.written_layers, writers)
        for segment in batch.segments:
            settled = segment.end_position - segment.proposed_tokens
            self._tables.extend(self._tables.sequence(segment.request_id), segment.tokens, settled)
        for pool in self._pools.values():
            pool.keys.settle()
            pool.values.settle()
        self._step = None

    # Questions.

    def cached_prefix_length(self, tokens: Sequence[int]) -> int:
        """Positions that `admit(…, tokens)` would find cached now."""
        return len(self._tables.cached_prefix(tokens)) * self._tables.block_size

    def pending_prefix(self, tokens: Sequence[int]) -> bool:
        """True when an open request computes the next block of these tokens now: waiting saves the work."""
        return self._tables.prefix.is_next_block_pending(tokens)

    def blocks_for(self, length: int) -> int:
        """Blocks that hold `length` tokens."""
        return -(-length // self._tables.block_size)

    def missing_blocks(self, request_id: str, length: int) -> int:
        """Blocks that `grow(request_id, length)` would take."""
        return self._tables.missing_blocks(request_id, length)

    @property
    def free_blocks(self) -> int:
        """Blocks that nobody owns: free ones, and cached ones that can be evicted."""
        return self._tables.allocator.available

    @property
    def token_capacity(self) -> int:
        """Tokens of all blocks: what one request alone could hold."""
        return self._tables.allocator.blocks_total * self._tables.block_size

    def writers(self, request_id: str) -> npt.NDArray[np.int64]:
        """Who wrote each row: (length, 3) of request number, step, packed row."""
        sequence = self._tables.sequence(request_id)
        return self._ledger.writers(sequence.slots(sequence.length))

    def request_names(self) -> Sequence[str]:
        """Request ids by number."""
        return self._numbers.names

    def audit_read(
        self, layer: int, request_id: str
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Copies of what lies in memory: keys, values (length, kv_heads, head_size), writers (length, 3)."""
        sequence = self._tables.sequence(request_id)
        slots = sequence.slots(sequence.length)
        gap = self._ledger.first_gap(layer, slots)
        if gap is not None or layer not in self._pools:
            raise never_written(request_id, layer, gap or 0)
        index, pool = self._backend.index(slots), self._pools[layer]
        return pool.keys.bits(index), pool.values.bits(index), self._ledger.writers(slots)

    def state(self) -> StoreState:
        """Blocks now."""
        allocator = self._tables.allocator
        return StoreState(allocator.used, allocator.cached, allocator.blocks_total)

    def check_integrity(self) -> None:
        """Raise AssertionError naming the block or request where ownership, states, keys or rows disagree."""
        self._tables.check_integrity()

    # Inside.

    def _current_step(self) -> StepSlots:
        if self._step is None:
            raise EngineError("no step is under way; call begin_step before reading or writing K/V rows.")
        return self._step

    def _admission(self, sequence: PagedSequence) -> Admission:
        writers = self._ledger.writers(sequence.slots(sequence.length))
        reused = reused_rows(sequence.request_id, writers, self._numbers.names)
        return Admission(sequence.length, reused)

    def _copy_rows(self, source: int, target: int, rows: int) -> None:
        offsets = np.arange(rows, dtype=np.int64)
        source_slots, target_slots = (
            source * self._tables.block_size + offsets,
            target * self._tables.block_size + offsets,
        )
        self._ledger.copy(source_slots, target_slots)
        source_index, target_index = self._backend.index(source_slots), self._backend.index(target_slots)
        for pool in self._pools.values():
            pool.keys.copy(source_index, target_index)
            pool.values.copy(source_index, target_index)
