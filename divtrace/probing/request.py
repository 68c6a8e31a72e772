"""What to probe. Must not know kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from divtrace.errors import DivtraceError
from engine.model.load import LoadedModel

DEFAULT_ROW_COUNTS = (*range(1, 41), 48, 64, 65, 96, 128, 129)
MOST_ROWS = 4096
DEFAULT_BUDGET_S, LEAST_BUDGET_S = 54.0, 20.0
"""What loading a model leaves of the first, and at least the second: with its start the command ends in a minute."""


@dataclass(frozen=True, slots=True)
class LinearShape:
    """A linear of random weights: K inputs, N outputs, dense float32 when `bits` is 0, else MLX affine."""

    input_size: int
    output_size: int
    bits: int = 4
    group_size: int = 32


SMALL_SHAPES = (LinearShape(576, 192), LinearShape(576, 576), LinearShape(1536, 576))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRequest:
    """Shapes come from `model` (its unique linears, real weights) or from `shapes`; both may be given.

    `activations` holds rows (rows, K) float32 to use for that input size K, repeated as needed; other sizes get
    normal random rows from `seed`. `operations` and `implementations` keep only cases whose name starts with one
    of these words; empty keeps all. The probe stops adding row counts to a case when its share of `budget_s` is
    spent.
    """

    model: LoadedModel | None = None
    shapes: tuple[LinearShape, ...] = ()
    row_counts: tuple[int, ...] = DEFAULT_ROW_COUNTS
    operations: tuple[str, ...] = ()
    implementations: tuple[str, ...] = ()
    budget_s: float = DEFAULT_BUDGET_S
    seed: int = 0
    activations: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise DivtraceError for row counts, shapes or a budget that make no sense."""
        counts = self.row_counts
        if not counts or sorted(set(counts)) != list(counts) or counts[0] < 1 or counts[-1] > MOST_ROWS:
            raise DivtraceError(
                f"probe: row counts must rise, each once, from 1 to {MOST_ROWS} at most; got {counts[:8]}..."
            )
        if not self.budget_s > 0:
            raise DivtraceError(f"probe: the time budget must be above 0 seconds, not {self.budget_s}.")
        for shape in self.shapes:
            if shape.input_size < 1 or shape.output_size < 1:
                raise DivtraceError(f"probe: shape {shape.input_size}x{shape.output_size} has no elements.")
            if shape.bits and shape.input_size % shape.group_size:
                raise DivtraceError(
                    f"probe: {shape.input_size} inputs are not whole groups of"
                    f" {shape.group_size}; choose another group size."
                )
