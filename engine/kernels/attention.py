"""Attention over one segment's K/V: how its queries are split into calls. Must not know stores or schedules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from engine.errors import SettingsError
from engine.kernels.policy import AttentionPath


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One segment's attention: queries (1, heads, rows, D), keys and values (1, kv_heads, keys, D), all causal.

    The last query row attends to all keys, each earlier one to one key less. `window` is the number of most recent
    keys a query may see (None: all).
    """

    queries: mx.array
    keys: mx.array
    values: mx.array
    scale: float
    window: int | None
    sinks: mx.array | None


def attend(call: AttentionCall, path: str) -> mx.array:
    """Return (1, heads, rows, D) by the named path.

    Raises:
        SettingsError: the path is unknown.
    """
    kernel = ATTENTION_KERNELS.get(path)
    if kernel is None:
        raise SettingsError(f"attention path {path!r} is unknown; this machine has {', '.join(ATTENTION_KERNELS)}.")
    return kernel(call)


def _kernel(
    call: AttentionCall, queries: mx.array, keys: mx.array, values: mx.array, mask: str | mx.array | None
) -> mx.array:
    return mx.fast.scaled_dot_product_attention(queries, keys, values, scale=call.scale, mask=mask, sinks=call.sinks)


def _row_by_row(call: AttentionCall) -> mx.array:
    rows, keys = call.queries.shape[2], call.keys.shape[2]
    if rows == 1 and not (call.window and keys > call.window):
        return _kernel(call, call.queries, call.keys, call.values, None)
    outputs = []
    for row in range(rows):
        end = keys - rows + row + 1
        start = max(0, end - call.window) if call.window else 0
        outputs.append(
            _kernel(
                call,
                call.queries[:, :, row : row + 1],
                call.keys[:, :, start:end],
                call.values[:, :, start:end],
                None,
            )
        )
    return outputs[0] if rows == 1 else mx.concatenate(outputs, axis=2)


def _whole_segment(call: AttentionCall) -> mx.array:
    rows, keys = call.queries.shape[2], call.keys.shape[2]
    if rows == 1:
        return _row_by_row(call)
    if call.window and keys > call.window:
        return _kernel(call, call.queries, call.keys, call.values, _window_mask(rows, keys, call.window))
    return _kernel(call, call.queries, call.keys, call.values, "causal")


def _window_mask(rows: int, keys: int, window: int) -> mx.array:
    query_position = mx.arange(keys - rows, keys)[:, None]
    key_position = mx.arange(keys)[None]
    return (key_position <= query_position) & (key_position > query_position - window)


AttentionKernel = Callable[[AttentionCall], mx.array]

ATTENTION_KERNELS: dict[str, AttentionKernel] = {
    AttentionPath.SEGMENT: _whole_segment,
    AttentionPath.ROW: _row_by_row,
}
