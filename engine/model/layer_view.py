"""What a layer of an mlx-lm model sees as its cache during one packed forward. Must not know scheduling.

Rows are the batch axis: the layer computes on (packed_rows, heads, 1, D), which is mlx-lm's own contract for batched
decoding (one rope offset per batch element). `update_and_fetch` stores the rows and returns them only as a handle.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from engine.batch import Batch
from engine.errors import UnsupportedModelError
from engine.kernels.attention import AttentionCall, attend
from engine.kernels.dispatch import Dispatcher
from engine.kernels.policy import AttentionPath
from engine.kv.store import KVStore
from engine.model.interception import AttentionInterception
from engine.model.invariant_attention import InvariantAttention
from engine.observer import LayerRows


@dataclass(frozen=True, slots=True)
class ForwardContext:
    """What all layers of one packed forward share. `offsets` are the rows' positions, (packed_rows,) int32."""

    batch: Batch
    store: KVStore
    dispatcher: Dispatcher
    interception: AttentionInterception
    offsets: mx.array
    capture: list[LayerRows] | None
    invariant_attention: InvariantAttention


@dataclass(slots=True)
class LayerView:
    """The cache object of one layer. `window` is the number of most recent keys a query sees, None for all."""

    layer: int
    site: str
    window: int | None
    context: ForwardContext
    attend_calls: int = field(default=0)
    handle: tuple[mx.array, mx.array] | None = field(default=None)

    @property
    def offset(self) -> mx.array:
        """Rope offsets, one per packed row."""
        return self.context.offsets

    def make_mask(self, N: int, return_array: bool = False, window_size: int | None = None) -> None:  # noqa: ARG002
        """No mask: attention is ours. mlx-lm's name for the query length is N."""
        if N != 1:
            raise UnsupportedModelError(f"layer {self.layer} asked for a mask over {N} queries; packed rows have one.")

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Store K and V of all rows, each (packed_rows, kv_heads, 1, D); returns them as a handle."""
        context = self.context
        key_rows, value_rows = keys[:, :, 0], values[:, :, 0]
        context.store.write(self.layer, key_rows, value_rows)
        if context.capture is not None:
            context.capture.append(LayerRows(key_rows, value_rows))
        context.interception.announce(keys, self)
        self.handle = (keys, values)
        return keys, values

    def keys_and_values(self) -> tuple[mx.array, mx.array] | None:
        """The handle, for layers that share an earlier layer's K/V."""
        return self.handle

    def attend(self, queries: mx.array, scale: float, mask: Any, sinks: mx.array | None) -> mx.array:
        """Attention of all packed rows, segment by segment: (packed_rows, heads, 1, D) in and out."""
        if mask is not None:
            raise UnsupportedModelError(
                f"{self.site} builds its own score bias, which packed rows cannot honour; use another model."
            )
        context = self.context
        path = context.dispatcher.attention(self.site, queries.shape[1], queries.shape[3], queries.dtype)
        if path == AttentionPath.INVARIANT:
            self.attend_calls += 1
            return context.invariant_attention.attend(self.layer, queries, scale, self.window, sinks)
        outputs = []
        for index, segment in enumerate(context.batch.segments):
            rows = queries[segment.first_row : segment.first_row + segment.rows]
            keys, values = context.store.read(self.layer, index)
            if keys.dtype != rows.dtype:
                keys, values = keys.astype(rows.dtype), values.astype(rows.dtype)
            # (rows, heads, 1, D) of a single row is (1, heads, rows, D) already.
            own = rows if segment.rows == 1 else rows.swapaxes(0, 2)
            attended = attend(AttentionCall(own, keys, values, scale, self.window, sinks), path)
            outputs.append(attended if segment.rows == 1 else attended.swapaxes(0, 2))
        self.attend_calls += 1
        return outputs[0] if len(outputs) == 1 else mx.concatenate(outputs, axis=0)

    @property
    def state(self) -> list[mx.array]:
        """Nothing to evaluate or save: the store owns the K/V."""
        return []

    def is_trimmable(self) -> bool:
        """Rollback goes through the store."""
        return False
