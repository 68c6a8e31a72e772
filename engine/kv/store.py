"""The contract between the engine and K/V memory.

Implementations: `paged` (the product) and `contiguous` (the control).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.observer import ReusedRow


@dataclass(frozen=True, slots=True)
class Admission:
    """What a request starts with: `cached_tokens` positions it need not compute, and who wrote each."""

    cached_tokens: int
    reused: tuple[ReusedRow, ...] = ()


@dataclass(frozen=True, slots=True)
class StoreState:
    """Blocks in use, full-and-cached, and in all; 0 where K/V is not paged."""

    blocks_used: int
    blocks_cached: int
    blocks_total: int


class KVStore(Protocol):
    """Bookkeeping per request, and the arrays of every layer.

    A step goes: `grow` for each segment, `begin_step(batch)`, per layer one `write` of all rows and then
    one `read` per segment, `commit_step(batch)`, and `truncate` for each request with rejected rows.
    """

    def admit(self, request_id: str, tokens: Sequence[int]) -> Admission:
        """Open a request that begins with `tokens`; take what the prefix cache holds (never all of them)."""
        ...

    def grow(self, request_id: str, length: int) -> bool:
        """Make room for positions below `length`; False (and nothing changed) when memory is short."""
        ...

    def can_grow(self, lengths: Mapping[str, int]) -> bool:
        """True when all of these requests could `grow` to their lengths together; changes nothing."""
        ...

    def can_admit(self, tokens: Sequence[int], length: int) -> bool:
        """True when `admit(..., tokens)` and then `grow` to `length` would succeed now; changes nothing."""
        ...

    def begin_step(self, batch: Batch) -> None:
        """Build slot mappings once for all layers."""
        ...

    def write(self, layer: int, keys: Any, values: Any) -> None:
        """Store K and V of all packed rows: (packed_rows, kv_heads, head_size), numpy or mx.array."""
        ...

    def read(self, layer: int, segment_index: int) -> tuple[Any, Any]:
        """K and V of a segment's request up to the segment's end.

        Two mx.arrays (1, kv_heads, end_position, head_size). EngineError names a row that nobody wrote."""
        ...

    def commit_step(self, batch: Batch) -> None:
        """The step's rows are computed: note who wrote them, publish blocks that are now full."""
        ...

    def truncate(self, request_id: str, length: int) -> None:
        """Drop rows at positions >= `length` (rejected speculation)."""
        ...

    def release(self, request_id: str, reusable: bool = True) -> None:
        """Close a request; its full blocks may stay cached. `reusable` off: no later request may read its rows."""
        ...

    def writers(self, request_id: str) -> npt.NDArray[np.int64]:
        """Who wrote each row: (length, 3) of request number (see `request_names`), step, packed row."""
        ...

    def request_names(self) -> Sequence[str]:
        """Request ids by the number that `writers` uses."""
        ...

    def state(self) -> StoreState:
        """Blocks now."""
        ...

    def check_integrity(self) -> None:
        """Raise AssertionError naming the block when ownership and counts disagree."""
        ...

    def cached_prefix_length(self, tokens: Sequence[int]) -> int:
        """Tokens of a prompt that `admit` would take from the prefix cache now; 0 without one."""
        ...

    def pending_prefix(self, tokens: Sequence[int]) -> bool:
        """True when another request is computing a block that this prompt could share (single flight)."""
        ...

    def fork(self, parent_id: str, child_id: str) -> Admission:
        """Open `child_id` on all rows that `parent_id` has computed (n samples of one prompt); truncate what is not
        wanted.
        """
        ...

    def audit_read(
        self, layer: int, request_id: str
    ) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Copies of what lies in memory now: keys, values (length, kv_heads, head_size), writers (length, 3).

        bfloat16 comes as uint16. EngineError names a row that nobody wrote.
        """
        ...
