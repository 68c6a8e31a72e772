"""What a probe found, as records with a JSON form. Must not know kernels or terminals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Findings:
    """One case: an operation of one shape, by one implementation, on a number of threads (0: it has none of its own).

    All but `threads`, `row_counts`, `labels` and the sizes of differences are row counts:

    - `changed`: some row differs from the same row computed alone.
    - `index_dependent`: identical rows of one call have distinct results (`distinct_results` of them at most).
    - `neighbour_dependent`: row 0 changes when only the other rows' content does (other numbers, infinities, NaN).
    - `padding_dependent`: rows change when zero rows are added up to the next multiple of eight.
    - `thread_dependent`: the result differs from that on one thread; None where threads cannot be chosen.
    - `unrepeatable`: the same call gave other bits.

    `classes` groups row counts by the bits of row 0. `skipped` row counts did not fit into the case's time. `most_ulps`
    (units in the last place of the row's largest value) and `largest_difference` compare with the row alone. `time_s`
    is the best time of a call per row count. `labels` are the kernels that MLX's tables predict, per row count; empty
    where they do not apply.
    """

    operation: str
    implementation: str
    shape: str
    dtype: str
    threads: int
    row_counts: tuple[int, ...]
    changed: tuple[int, ...]
    index_dependent: tuple[int, ...]
    neighbour_dependent: tuple[int, ...]
    padding_dependent: tuple[int, ...]
    thread_dependent: tuple[int, ...] | None
    unrepeatable: tuple[int, ...]
    classes: tuple[tuple[int, ...], ...]
    distinct_results: int
    most_ulps: float
    largest_difference: float
    time_s: Mapping[int, float]
    skipped: tuple[int, ...] = ()
    labels: tuple[str, ...] = ()

    @property
    def is_row_invariant(self) -> bool:
        """True when no row count tried changed a row's bits in any way."""
        return not (
            self.changed
            or self.index_dependent
            or self.neighbour_dependent
            or self.padding_dependent
            or self.thread_dependent
            or self.unrepeatable
        )


def class_of(found: Findings, count: int) -> int:
    """Index of the equivalence class of a row count, 0 being the class of the smallest row count."""
    return next(place for place, counts in enumerate(found.classes) if count in counts)


@dataclass(frozen=True, slots=True)
class TileProposal:
    """Row counts of a tile in which no index changes a row's bits, for `tile:T`: all found, and the fastest per row."""

    operation: str
    implementation: str
    shape: str
    threads: int
    candidates: tuple[int, ...]
    best: int | None


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the probe ran: what decides which kernels exist."""

    processor: str
    cores: int
    backend: str
    architecture: str
    mlx_version: str
    numpy_version: str
    blas: str
    numba_version: str


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """All cases, the tiles they allow, and what was left out for lack of time."""

    machine: Machine
    source: str
    seed: int
    elapsed_s: float
    findings: tuple[Findings, ...]
    tiles: tuple[TileProposal, ...]
    not_run: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps; keys of `time_s` become strings there."""
        return {"schema": "divtrace-probe", "version": SCHEMA_VERSION, **asdict(self)}

    def plot(self) -> Figure:
        """A plotly figure: one line a kernel, one cell a row count, one colour for equal bits of row 0.

        Raises:
            DivtraceError: plotly is not installed.
        """
        from divtrace.figures.kernel_map import plot_kernel_map

        return plot_kernel_map(self)
