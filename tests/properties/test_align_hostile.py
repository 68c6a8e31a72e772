"""Traces from strangers: any number anywhere gives an answer or one sentence, never a crash or a memory bomb."""

from __future__ import annotations

import contextlib
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divtrace.divergence.compare import diff_traces
from divtrace.errors import DivtraceError
from divtrace.origin.find import find_origins
from divtrace.render.blame import render_blame
from divtrace.render.diff import render_diff
from divtrace.render.text import plain
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import TABLES
from tests.divtrace.origin.rewriting import overwrite_cell
from tests.divtrace.trace.builders import TraceBuilder, example_run

CELLS = [
    {"table": table.name, "column": column.name, "row": 0}
    for table in TABLES
    if table.name
    in ("requests", "completions", "steps", "segments", "plans", "plan_sites", "sampled", "rows", "reused")
    for column in table.columns
    if column.dtype.startswith("u")
]
NUMBERS = st.sampled_from([0, 1, 2, 3, 7, 1000, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs of the builders' example; the second drifts in one row and flips one token."""
    folder = tmp_path_factory.mktemp("pair")
    other: TraceBuilder = example_run()
    other.content[("anchor", 3, 1)] = 5
    return example_run().write(folder / "a.h5"), other.write(folder / "b.h5")


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """An allocation of gigabytes fails here instead of filling the machine."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = (
        int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if Path("/proc").exists() else 0
    )
    if used:
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
@given(cell=st.sampled_from(CELLS), row=st.integers(0, 7), value=NUMBERS)
def test_any_number_in_any_cell_gives_an_answer_or_one_sentence(
    pair: tuple[Path, Path], tmp_path: Path, cell: dict[str, object], row: int, value: int
) -> None:
    damaged = tmp_path / "damaged.h5"
    shutil.copy(pair[1], damaged)
    overwrite_cell(damaged, {**cell, "row": row}, value)
    for left, right in ((pair[0], damaged), (damaged, pair[0])):
        with contextlib.suppress(DivtraceError), open_trace(left) as a, open_trace(right) as b:
            plain(render_diff(diff_traces(a, b)))
            for request in ("anchor", "follower"):
                plain(render_blame(find_origins(a, b, request)))
