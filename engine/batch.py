"""The batch of one step: which rows of which requests lie together. Pure records; no scheduling, no arrays of K/V."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt


class SegmentKind(StrEnum):
    """What a segment's rows are for."""

    PREFILL = "prefill"
    DECODE = "decode"
    VERIFY = "verify"
    RECOMPUTE = "recompute"


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive packed rows `first_row .. first_row + rows` of one request.

    `tokens` are the input ids of these rows, at positions `first_position ..`. The last `wanted_logits` rows
    get logits (0 for a prefill chunk that is not the last, 1 for decode, K or K + 1 for verify).
    `cached_tokens` positions before `first_position` were taken from the prefix cache, or from the request whose
    prompt this one samples, when this segment began.
    For verify, `proposed_tokens` of the rows' tokens (the trailing ones) are draft proposals, not yet committed.
    """

    request_id: str
    kind: SegmentKind
    first_position: int
    tokens: tuple[int, ...]
    first_row: int
    wanted_logits: int
    cached_tokens: int = 0
    proposed_tokens: int = 0

    @property
    def rows(self) -> int:
        """Number of packed rows."""
        return len(self.tokens)

    @property
    def end_position(self) -> int:
        """One past the last position: the number of K/V rows that the last row attends to."""
        return self.first_position + len(self.tokens)


@dataclass(frozen=True)
class Batch:
    """All segments of one step, in row order."""

    step: int
    segments: tuple[Segment, ...]

    @cached_property
    def packed_rows(self) -> int:
        """Rows of the transformer's linear layers."""
        return sum(segment.rows for segment in self.segments)

    @cached_property
    def head_rows(self) -> int:
        """Rows of the output projection."""
        return sum(segment.wanted_logits for segment in self.segments)

    @cached_property
    def token_ids(self) -> npt.NDArray[np.int32]:
        """Input ids, shape (packed_rows,), int32."""
        return np.fromiter((t for s in self.segments for t in s.tokens), np.int32, self.packed_rows)

    @cached_property
    def positions(self) -> npt.NDArray[np.int32]:
        """Position of each row in its request, shape (packed_rows,), int32."""
        ranges = [np.arange(s.first_position, s.end_position, dtype=np.int32) for s in self.segments]
        return np.concatenate(ranges) if ranges else np.zeros(0, np.int32)

    @cached_property
    def wanted_rows(self) -> npt.NDArray[np.int32]:
        """Packed row index of each logits row, shape (head_rows,), int32."""
        ranges = [
            np.arange(s.first_row + s.rows - s.wanted_logits, s.first_row + s.rows, dtype=np.int32)
            for s in self.segments
        ]
        return np.concatenate(ranges) if ranges else np.zeros(0, np.int32)

    @cached_property
    def max_query_length(self) -> int:
        """Longest segment in rows: what a kernel that looks at batch-wide maxima would see."""
        return max((s.rows for s in self.segments), default=0)

    @cached_property
    def max_key_length(self) -> int:
        """Longest context in tokens."""
        return max((s.end_position for s in self.segments), default=0)
