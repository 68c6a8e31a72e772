"""Reads the whole arrays that level `tensors` keeps. Must not know why they were kept."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.errors import TraceError
from divtrace.trace.guarded_file import DAMAGED
from divtrace.trace.reader import Trace

DTYPES: dict[str, np.dtype[Any]] = {
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
    "float32": np.dtype("<f4"),
    "float64": np.dtype("<f8"),
    "uint8": np.dtype("u1"),
    "uint16": np.dtype("<u2"),
    "uint32": np.dtype("<u4"),
    "int32": np.dtype("<i4"),
    "int64": np.dtype("<i8"),
}


def read_tensor(trace: Trace, row: int) -> npt.NDArray[Any]:
    """The array in row `row` of `tensors`, in its own shape; bfloat16 as its uint16 patterns.

    Raises:
        EvidenceError: the trace was recorded at a lower level.
        TraceError: there is no such row, its type is unknown, or its shape and bytes do not fit.
    """
    where = f"{trace.path}: tensors row {row}"
    if not 0 <= row < trace.length("tensors"):
        raise TraceError(f"{where}: the trace holds {trace.length('tensors')} tensors.")
    names = ("dtype_string", "shape_offset", "shape_count", "bytes_offset", "bytes_count")
    number, shape_offset, axes, offset, count = (int(trace.column("tensors", name, row, row + 1)[0]) for name in names)
    dtype = DTYPES.get(trace.string(number))
    if dtype is None:
        raise TraceError(f"{where}: unknown element type {trace.string(number)!r}; {DAMAGED}.")
    shape = tuple(map(int, trace.column("tensor_shapes", "value", shape_offset, shape_offset + axes)))
    if math.prod(shape) * dtype.itemsize != count:
        raise TraceError(f"{where}: {count} bytes do not make an array of shape {shape}; {DAMAGED}.")
    return trace.column("tensor_bytes", "value", offset, offset + count).copy().view(dtype).reshape(shape)
