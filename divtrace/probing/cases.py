"""One case of the probe: a row function and how to run it. Must not know how differences are found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.kernels.native import NativeCall

Rows = npt.NDArray[np.float32]
Output = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A function of rows that is meant to treat each row alone.

    `run` takes rows (M, input_size) float32 and returns (M, ...) in the kernel's own type (bfloat16 as uint16).
    `run_on_one_thread` is the same call limited to one thread, None where that is no other call.
    `alone` gives the result that a row must have from all rows and its index; by default a call of its own.
    `rows_are_alike` is False where a row's place is one of its inputs (causal masks): identical rows say nothing then.
    """

    operation: str
    implementation: str
    shape: str
    dtype: str
    input_size: int
    run: Callable[[Rows], Output]
    run_on_one_thread: Callable[[Rows], Output] | None = None
    alone: Callable[[Rows, int], Output] | None = None
    rows_are_alike: bool = True
    threads: int = 0
    native_call: NativeCall | None = None

    def row_alone(self, rows: Rows, index: int) -> Output:
        """The result of row `index` with no other row in the call."""
        if self.alone is not None:
            return self.alone(rows, index)
        return self.run(rows[index : index + 1])[0]
