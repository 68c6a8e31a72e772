"""Where K/V rows lie: numpy memory on a CPU, mx.arrays on a GPU, behind one small interface.

Owns dtypes, growth and copies of one array of rows. Must not know requests, blocks or layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.errors import EngineError

Slots = Any
"""A slice, or what the backend's `index` or `block_index` returned."""


@dataclass(frozen=True, slots=True)
class BlockRows:
    """The first `length` rows of some blocks, in this order: (n,) int64 block numbers, `block_size` rows each."""

    blocks: npt.NDArray[np.int64]
    block_size: int
    length: int

    @property
    def slots(self) -> npt.NDArray[np.int64]:
        """Slots of the rows, (length,)."""
        offsets = np.arange(self.block_size, dtype=np.int64)
        return (self.blocks[:, None] * self.block_size + offsets).ravel()[: self.length]


class RowArray(Protocol):
    """One growable array of rows, (capacity, heads, head_size), addressed by slot."""

    def write(self, slots: Slots, rows: Any) -> None:
        """Put `rows` (n, heads, head_size) at `slots`; EngineError when shape or dtype is not the array's."""
        ...

    def read(self, slots: Slots) -> mx.array:
        """Rows at `slots` as an mx.array (1, heads, n, head_size)."""
        ...

    def bits(self, slots: Slots) -> npt.NDArray[Any]:
        """A copy of the rows at `slots` in numpy, (n, heads, head_size); bfloat16 comes as uint16."""
        ...

    def copy(self, source: Slots, target: Slots) -> None:
        """Copy rows inside the array."""
        ...

    def resize(self, capacity: int) -> None:
        """Make the array at least `capacity` rows long; rows keep their slots."""
        ...

    def clone(self) -> RowArray:
        """The same rows in memory of their own."""
        ...

    def settle(self) -> None:
        """Finish pending work, so that no computation graph is kept alive between steps."""
        ...


class ArrayBackend(Protocol):
    """Makes row arrays and slot indices of one kind."""

    def index(self, slots: npt.NDArray[np.int64]) -> Slots:
        """Slots in the form that this backend's arrays take; build it once a step."""
        ...

    def block_index(self, rows: BlockRows) -> Slots:
        """Rows of whole blocks in the form that `read` takes fastest; build it once a step."""
        ...

    def allocate(self, capacity: int, like: Any) -> RowArray:
        """An array of `capacity` rows with the head shape and dtype of the rows `like`."""
        ...


def _require_same(expected: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    if expected != found:
        raise EngineError(
            f"K/V rows of (heads, head size, dtype) {found} were written to a layer that holds {expected}; "
            "a layer keeps one shape and dtype for the whole run."
        )


class _Scratch:
    """Memory that gathers reuse: fresh memory of that size costs page faults at every read."""

    def __init__(self) -> None:
        self._bytes = np.zeros(0, np.uint8)

    def rows(self, count: int, like: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """`count` rows of the shape and dtype of `like`'s rows; valid until the next call."""
        size = count * like.strides[0]
        if size > self._bytes.size:
            self._bytes = np.zeros(2 * size, np.uint8)
        return self._bytes[:size].view(like.dtype).reshape(count, *like.shape[1:])


class NumpyRows:
    """Rows in numpy memory. bfloat16, which numpy lacks, is kept as its bits in uint16."""

    def __init__(self, capacity: int, like: Any, scratch: _Scratch) -> None:
        self._scratch = scratch
        first = _to_numpy(like)
        self._bfloat16 = _is_bfloat16(like)
        self._array = np.zeros((capacity, *first.shape[1:]), first.dtype)

    @property
    def array(self) -> npt.NDArray[Any]:
        """The memory itself, (capacity, heads, head_size), for kernels that read it in place."""
        return self._array

    def write(self, slots: Slots, rows: Any) -> None:
        """See RowArray."""
        array = _to_numpy(rows)
        if array.shape[1:] != self._array.shape[1:] or array.dtype != self._array.dtype:
            _require_same((*self._array.shape[1:], str(self._array.dtype)), (*array.shape[1:], str(array.dtype)))
        self._array[slots] = array

    def read(self, slots: Slots) -> mx.array:
        """See RowArray. The head axis moves lazily: rows are copied, never transposed in memory."""
        rows = mx.array(self._gather(slots) if isinstance(slots, BlockRows) else self._array[slots])
        return (rows.view(mx.bfloat16) if self._bfloat16 else rows).transpose(1, 0, 2)[None]

    def bits(self, slots: Slots) -> npt.NDArray[Any]:
        """See RowArray."""
        return np.array(self._array[slots])

    def copy(self, source: Slots, target: Slots) -> None:
        """See RowArray."""
        self._array[target] = self._array[source]

    def resize(self, capacity: int) -> None:
        """See RowArray."""
        if capacity > len(self._array):
            grown = np.zeros((capacity, *self._array.shape[1:]), self._array.dtype)
            grown[: len(self._array)] = self._array
            self._array = grown

    def clone(self) -> NumpyRows:
        """See RowArray."""
        twin = NumpyRows(0, self._array, self._scratch)
        twin._array, twin._bfloat16 = self._array.copy(), self._bfloat16
        return twin

    def settle(self) -> None:
        """Nothing is pending in numpy."""

    def _gather(self, rows: BlockRows) -> npt.NDArray[Any]:
        blocks = self._array.reshape(-1, rows.block_size, *self._array.shape[1:])
        gathered = self._scratch.rows(len(rows.blocks) * rows.block_size, self._array)
        # Without "clip" numpy gathers into a buffer of its own first.
        np.take(blocks, rows.blocks, axis=0, out=gathered.reshape(-1, *blocks.shape[1:]), mode="clip")
        return gathered[: rows.length]


class MlxRows:
    """Rows in one mx.array.

    Nobody else may hold that array: a write then happens in place, else it copies all rows.
    Order matters for the same reason: all writes of a step before its first read, per array.
    """

    def __init__(self, capacity: int, like: Any) -> None:
        first = _to_mlx(like)
        self._array = mx.zeros((capacity, *first.shape[1:]), first.dtype)

    @property
    def array(self) -> mx.array:
        """The array itself, (capacity, heads, head_size), for kernels that read it in place."""
        return self._array

    def write(self, slots: Slots, rows: Any) -> None:
        """See RowArray."""
        array = _to_mlx(rows)
        if array.shape[1:] != self._array.shape[1:] or array.dtype != self._array.dtype:
            _require_same((*self._array.shape[1:], str(self._array.dtype)), (*array.shape[1:], str(array.dtype)))
        self._array[slots] = array

    def read(self, slots: Slots) -> mx.array:
        """See RowArray."""
        return self._array[slots].transpose(1, 0, 2)[None]

    def bits(self, slots: Slots) -> npt.NDArray[Any]:
        """See RowArray."""
        return np.array(_to_numpy(self._array[slots]))

    def copy(self, source: Slots, target: Slots) -> None:
        """See RowArray. Computes the copied rows first: an open gather makes the write copy all rows."""
        rows = self._array[source]
        mx.eval(rows)
        self._array[target] = rows

    def resize(self, capacity: int) -> None:
        """See RowArray."""
        missing = capacity - self._array.shape[0]
        if missing > 0:
            tail = mx.zeros((missing, *self._array.shape[1:]), self._array.dtype)
            self._array = mx.concatenate([self._array, tail])

    def clone(self) -> MlxRows:
        """See RowArray."""
        twin = MlxRows(0, self._array)
        twin._array = mx.array(self._array)
        mx.eval(twin._array)
        return twin

    def settle(self) -> None:
        """See RowArray."""
        mx.eval(self._array)


class NumpyBackend:
    """K/V in numpy memory: what a CPU uses, where kernels of numpy and numba read the rows in place."""

    def __init__(self) -> None:
        self._scratch = _Scratch()

    def index(self, slots: npt.NDArray[np.int64]) -> Slots:
        """See ArrayBackend."""
        return slots

    def block_index(self, rows: BlockRows) -> Slots:
        """See ArrayBackend. Neighbouring blocks become a slice, which is read without a gather."""
        if not np.all(np.diff(rows.blocks) == 1):
            return rows
        first = int(rows.blocks[0]) * rows.block_size if len(rows.blocks) else 0
        return slice(first, first + rows.length)

    def allocate(self, capacity: int, like: Any) -> NumpyRows:
        """See ArrayBackend."""
        return NumpyRows(capacity, like, self._scratch)


class MlxBackend:
    """K/V in mx.arrays: what a GPU uses."""

    def index(self, slots: npt.NDArray[np.int64]) -> Slots:
        """See ArrayBackend."""
        return mx.array(slots.astype(np.int32))

    def block_index(self, rows: BlockRows) -> Slots:
        """See ArrayBackend. Always a gather: on a GPU the layout of K/V, not their values, can pick the kernel."""
        return self.index(rows.slots)

    def allocate(self, capacity: int, like: Any) -> MlxRows:
        """See ArrayBackend."""
        return MlxRows(capacity, like)


def default_backend() -> ArrayBackend:
    """Numpy when MLX computes on the CPU, mx.arrays otherwise."""
    return NumpyBackend() if mx.default_device().type == mx.DeviceType.cpu else MlxBackend()


def _is_bfloat16(rows: Any) -> bool:
    return isinstance(rows, mx.array) and rows.dtype == mx.bfloat16


def _to_numpy(rows: Any) -> npt.NDArray[Any]:
    if isinstance(rows, np.ndarray):
        return rows
    return np.asarray(rows.view(mx.uint16) if rows.dtype == mx.bfloat16 else rows)


def _to_mlx(rows: Any) -> mx.array:
    return rows if isinstance(rows, mx.array) else mx.array(rows)
