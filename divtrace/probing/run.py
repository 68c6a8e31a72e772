"""Runs a probe: builds its cases, shares out the time, collects findings. Must not know how results are shown."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from divtrace.errors import DivtraceError
from divtrace.probing.budget import Budget, OnLongCall
from divtrace.probing.cases import Case, Rows
from divtrace.probing.linear_cases import linear_cases, matmul_cases, model_sites, random_site
from divtrace.probing.machine import backend, this_machine
from divtrace.probing.measure import measure
from divtrace.probing.other_cases import attention_cases, elementwise_cases, expert_cases
from divtrace.probing.request import SMALL_SHAPES, LinearShape, ProbeRequest
from divtrace.probing.result import Findings, ProbeResult
from divtrace.probing.tiles import TILED_IMPLEMENTATION, propose_tile
from divtrace.probing.words import case_words
from engine.kernels.native import Backend

Progress = Callable[[str, int, int], None]


MLX = "mlx"
OPERATIONS_ASKED_FIRST = ("quantized_matmul", "matmul", "embedding as linear")


def run_probe(
    request: ProbeRequest, progress: Progress | None = None, on_long_call: OnLongCall | None = None
) -> ProbeResult:
    """Probe every case of the request; `progress(case, done, total)` is called before each case.

    `on_long_call(case)` is called, from another thread, while a first call takes long: a kernel is being compiled. On a
    GPU such calls do not count against the budget, and MLX's own kernels come first.

    Raises:
        DivtraceError: nothing is left to probe, or given activations do not fit.
    """
    started, on_gpu = time.perf_counter(), backend() is not Backend.CPU
    budget = Budget(on_gpu, on_long_call)
    cases = [case for case in _cases(request) if _wanted(case, request)]
    if on_gpu:
        cases = gpu_order(cases)
    if not cases:
        raise DivtraceError(
            "probe: no case matches the given operations and implementations; leave them out to see all."
        )
    findings: list[Findings] = []
    not_run: list[str] = []
    for done, case in enumerate(cases):
        if progress is not None:
            progress(case_words(case), done, len(cases))
        left_s = request.budget_s - budget.spent_s
        if left_s <= 0:
            not_run.append(case_words(case))
            continue
        rows = _rows(request, case.input_size)
        with np.errstate(all="ignore"):
            findings.append(measure(case, rows, request.row_counts, left_s / (len(cases) - done), budget))
    return ProbeResult(
        machine=this_machine(),
        source=request.model.source if request.model is not None else "random weights",
        seed=request.seed,
        elapsed_s=time.perf_counter() - started,
        findings=tuple(findings),
        tiles=tuple(propose_tile(found) for found in findings if found.implementation == TILED_IMPLEMENTATION),
        not_run=tuple(not_run),
    )


def gpu_order(cases: Iterable[Case]) -> list[Case]:
    """MLX's kernels first, its matrix products before the rest, numpy's last: on a GPU the first are what is asked."""

    def place(case: Case) -> tuple[int, int]:
        operations = OPERATIONS_ASKED_FIRST
        rank = operations.index(case.operation) if case.operation in operations else len(operations)
        return (0, rank) if case.implementation == MLX else (2 if case.implementation.startswith("numpy") else 1, 0)

    return sorted(cases, key=place)


def _wanted(case: Case, request: ProbeRequest) -> bool:
    operations, implementations = request.operations, request.implementations
    return (not operations or case.operation.startswith(operations)) and (
        not implementations or case.implementation.startswith(implementations)
    )


def _cases(request: ProbeRequest) -> Iterator[Case]:
    model = request.model
    shapes = request.shapes or (() if model is not None else SMALL_SHAPES)
    sites = [] if model is None else model_sites(model.model)
    sites += [random_site(shape, request.seed) for shape in shapes]
    yield from elementwise_cases(sites[0].input_size, 64 if model is None else model.head_size, request.seed)
    yield from attention_cases(*_attention_sizes(request), request.row_counts[-1], request.seed)
    smallest = min(sites, key=lambda site: site.input_size * site.output_size)
    yield from matmul_cases(smallest.input_size, smallest.output_size, request.seed)
    if smallest.input_size % LinearShape(1, 1).group_size == 0:
        yield from expert_cases(smallest.input_size, smallest.output_size, request.seed)
    for site in sorted(sites, key=lambda site: site.input_size * site.output_size):
        yield from linear_cases(site)


def _attention_sizes(request: ProbeRequest) -> tuple[int, int, int]:
    """Query heads, K/V heads and head size: the model's, else 9, 3 and 64."""
    if request.model is None:
        return 9, 3, 64
    configuration: dict[str, Any] = dict(request.model.configuration)
    kv_heads = request.model.kv_heads
    return int(configuration.get("num_attention_heads", kv_heads)), kv_heads, request.model.head_size


def _rows(request: ProbeRequest, input_size: int) -> Rows:
    most = -(-request.row_counts[-1] // 8) * 8
    given = request.activations.get(input_size)
    if given is None:
        return np.random.default_rng(request.seed + 1).standard_normal((most, input_size)).astype(np.float32)
    if given.ndim != 2 or given.shape[1] != input_size or len(given) == 0:
        raise DivtraceError(
            f"probe: activations for input size {input_size} have shape {given.shape}; give (rows, {input_size})."
        )
    repeated = np.resize(np.asarray(given, np.float32), (most, input_size))
    return np.ascontiguousarray(repeated)
