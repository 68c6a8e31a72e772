"""Feeds the row-invariant attention kernel from a K/V store: in place where the store has a pool, else from gathered
rows.

The kernel's bits do not depend on which of the two it was. Must not know policies.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.kernels.invariant import VisibleKeys, cuda_attention, paged_attention, visible_keys
from engine.kernels.invariant.cuda_attention import DeviceKeys, device_keys
from engine.kernels.linear import on_cpu
from engine.kv.paged import PagedStore
from engine.kv.store import KVStore

FloatArray = npt.NDArray[np.float32]


class InvariantAttention:
    """Attention of one packed forward; which slots a row sees is worked out once, for all layers."""

    def __init__(self, batch: Batch, store: KVStore) -> None:
        self._batch = batch
        self._store = store
        self._visible: VisibleKeys | None = None
        self._on_device: DeviceKeys | None = None

    def attend(
        self, layer: int, queries: mx.array, scale: float, window: int | None, sinks: mx.array | None
    ) -> mx.array:
        """(packed_rows, heads, 1, head_size) in and out, in the dtype of `queries`.

        Raises:
            EngineError: the device has no such kernel, numba is missing, a shape does not fit, or a row that nobody
            wrote would be read.
        """
        if not on_cpu():
            return self._on_cuda(layer, queries, scale, window, sinks)
        rows = np.array(queries[:, :, 0].astype(mx.float32))
        bias = None if sinks is None else np.array(sinks.astype(mx.float32))
        out = self._in_place(layer, rows, scale, window, bias)
        if out is None:
            out = self._gathered(layer, rows, scale, window, bias)
        return mx.array(out).astype(queries.dtype)[:, :, None]

    def _on_cuda(
        self, layer: int, queries: mx.array, scale: float, window: int | None, sinks: mx.array | None
    ) -> mx.array:
        """Over the pool in place, all segments at once, else over gathered rows, one by one; the bits are the same."""
        rows, store = queries[:, :, 0], self._store
        if not isinstance(store, PagedStore):
            return self._gathered_on_cuda(layer, rows, scale, window, sinks)[:, :, None]
        for index in range(len(self._batch.segments)):
            store.require_written(layer, index)
        keys, values = store.device_pool(layer)
        heads = (rows.shape[1], keys.shape[1], rows.shape[2])
        if self._on_device is None or not self._on_device.fits(*heads):
            self._on_device = device_keys(self._visible_slots(store), *heads)
        out = cuda_attention.paged_attention(
            rows, keys, values, self._on_device, scale=scale, window=window, sinks=sinks
        )
        return out[:, :, None]

    def _gathered_on_cuda(
        self, layer: int, rows: mx.array, scale: float, window: int | None, sinks: mx.array | None
    ) -> mx.array:
        outputs = []
        for index, segment in enumerate(self._batch.segments):
            own = slice(segment.first_row, segment.first_row + segment.rows)
            keys, values = (array[0].transpose(1, 0, 2) for array in self._store.read(layer, index))
            visible = device_keys(self._visible_rows(own, len(keys)), rows.shape[1], keys.shape[1], rows.shape[2])
            outputs.append(
                cuda_attention.paged_attention(
                    rows[own], keys, values, visible, scale=scale, window=window, sinks=sinks
                )
            )
        return mx.concatenate(outputs, axis=0)

    def _in_place(
        self, layer: int, rows: FloatArray, scale: float, window: int | None, sinks: FloatArray | None
    ) -> FloatArray | None:
        store = self._store
        if not isinstance(store, PagedStore):
            return None
        keys, values = store.pool(layer)
        if keys.dtype != np.float32 or values.shape != keys.shape:
            return None
        for index in range(len(self._batch.segments)):
            store.require_written(layer, index)
        visible = self._visible_slots(store)
        return paged_attention(rows, keys, values, visible, scale=scale, window=window, sinks=sinks)

    def _visible_slots(self, store: PagedStore) -> VisibleKeys:
        """The slots in the pool that each packed row sees, worked out once."""
        if self._visible is None:
            slots = [store.slots(index) for index in range(len(self._batch.segments))]
            tables = np.zeros((len(slots), max(len(s) for s in slots)), np.int32)
            for index, own in enumerate(slots):
                tables[index, : len(own)] = own
            counts = [segment.rows for segment in self._batch.segments]
            of_row = np.repeat(np.arange(len(slots), dtype=np.int32), counts)
            self._visible = visible_keys(tables, of_row, self._batch.positions + 1, pool_slots=store.token_capacity)
        return self._visible

    def _visible_rows(self, own: slice, keys: int) -> VisibleKeys:
        """What the packed rows `own` of one segment see of its `keys` gathered rows."""
        return visible_keys(
            np.arange(keys, dtype=np.int32)[None],
            np.zeros(own.stop - own.start, np.int32),
            self._batch.positions[own] + 1,
            pool_slots=keys,
        )

    def _gathered(
        self, layer: int, rows: FloatArray, scale: float, window: int | None, sinks: FloatArray | None
    ) -> FloatArray:
        out = np.empty_like(rows)
        for index, segment in enumerate(self._batch.segments):
            own = slice(segment.first_row, segment.first_row + segment.rows)
            keys, values = (
                np.ascontiguousarray(np.array(array[0].astype(mx.float32)).transpose(1, 0, 2))
                for array in self._store.read(layer, index)
            )
            visible = self._visible_rows(own, len(keys))
            out[own] = paged_attention(rows[own], keys, values, visible, scale=scale, window=window, sinks=sinks)
        return out
