"""Appends kept arrays to the tensor tables. Must not know why they are kept."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from divtrace.recorder.interning import Interner
from divtrace.recorder.tensors import KeptStep
from divtrace.trace.writer import TraceWriter


def append_tensors(writer: TraceWriter, interner: Interner, kept: Iterable[KeptStep]) -> None:
    """Write the arrays of some steps, byte for byte, little-endian and row-major."""
    for step in kept:
        for tensor in step.tensors:
            raw = np.frombuffer(np.ascontiguousarray(tensor.array).astype(_little(tensor.array)).tobytes(), np.uint8)
            writer.append_row(
                "tensors",
                step=tensor.step,
                site_string=interner.string(tensor.site),
                dtype_string=interner.string(tensor.dtype),
                trigger_string=interner.string(step.trigger.value),
                shape_offset=writer.append("tensor_shapes", {"value": np.array(tensor.array.shape, np.uint64)}),
                shape_count=tensor.array.ndim,
                bytes_offset=writer.append("tensor_bytes", {"value": raw}),
                bytes_count=len(raw),
            )


def _little(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> np.dtype[np.generic]:
    return array.dtype.newbyteorder("<")
