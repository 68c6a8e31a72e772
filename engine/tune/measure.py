"""Times every linear path on a model's own weights, shape by shape. Reads the model; changes nothing of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.environment import describe_environment
from engine.errors import EngineError, SettingsError
from engine.kernels.linear import LinearKernel, linear_kernel
from engine.kernels.policy import KernelPolicy, LinearPath
from engine.kernels.site import LinearSite
from engine.model.load import LoadedModel
from engine.model.packed import PackedModel
from engine.tune.choose import choose_paths
from engine.tune.records import ShapeTimings, TunedPolicy, TuneResult

ROW_COUNTS = (1, 2, 3, 4, 6, 8, 16, 32, 64, 128)
MOST_HEAD_ROWS = 16
"""The output projection sees one row a request (or verification row), never a prompt's; larger counts waste minutes."""
SITES_OF_A_SHAPE = 16
LEAST_ROUNDS = 2

OnShape = Callable[[ShapeTimings], None]


def tune(
    loaded: LoadedModel,
    row_counts: Sequence[int] = ROW_COUNTS,
    paths: Sequence[str] | None = None,
    spent_s: float = 0.3,
    on_shape: OnShape | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> TuneResult:
    """Find the fastest path for each site shape and row count of a loaded model.

    The sites of a shape are called one after another, so that their weights come from memory as in a step; paths take
    turns, and the best time counts.

    Args:
        loaded: the model; it must not be instrumented by an engine at the same time.
        row_counts: rows to measure; `MOST_HEAD_ROWS` caps those of the output projection.
        paths: the paths to compare; by default all that run here.
        spent_s: seconds to spend on one shape and row count, beyond two rounds.
        on_shape: called with each shape's timings as they come.
        clock: seconds; `time.process_time` where other programs share the processor, with one BLAS thread.

    Raises:
        SettingsError: there is no row count, or one is below 1, or a path cannot run here.
    """
    if not row_counts or min(row_counts) < 1:
        raise SettingsError("tuning needs row counts of 1 or more, for example 1,2,4,8,16.")
    kernels = {path: linear_kernel(path) for path in paths} if paths else available_paths()
    timings = []
    with PackedModel(loaded.model, KernelPolicy()) as packed:
        head = packed.dispatcher.head_site
        for sites in sites_by_shape(list(packed.sites.values())).values():
            counts = sorted(set(row_counts))
            if any(site.name == head for site in sites):
                counts = [count for count in counts if count <= MOST_HEAD_ROWS] or [MOST_HEAD_ROWS]
            timed = time_shape(sites, counts, kernels, spent_s, clock)
            timings.append(timed)
            if on_shape is not None:
                on_shape(timed)
    policy = TunedPolicy({timed.shape: choose_paths(timed.milliseconds) for timed in timings})
    return TuneResult(policy, tuple(timings), describe_environment(), loaded.source)


def available_paths() -> dict[str, LinearKernel]:
    """Kernels of all paths that run on this machine (an optional package may be missing), by path name."""
    leaf_site = _small_site()
    row = mx.ones((1, leaf_site.input_size))
    kernels: dict[str, LinearKernel] = {}
    for path in LinearPath:
        try:
            kernel = linear_kernel(path.value)
            mx.eval(kernel(leaf_site, row))
        except (EngineError, ImportError):
            continue
        kernels[path.value] = kernel
    return kernels


def sites_by_shape(sites: Sequence[LinearSite]) -> dict[str, list[LinearSite]]:
    """Sites of equal shape and storage, at most `SITES_OF_A_SHAPE` of each, in model order."""
    found: dict[str, list[LinearSite]] = {}
    for site in sites:
        found.setdefault(site.shape_name, []).append(site)
    return {shape: same[:SITES_OF_A_SHAPE] for shape, same in found.items()}


def time_shape(
    sites: Sequence[LinearSite],
    row_counts: Sequence[int],
    kernels: Mapping[str, LinearKernel],
    spent_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> ShapeTimings:
    """Time all kernels on sites of one shape, at each row count."""
    random = np.random.default_rng(0)
    dtype = sites[0].leaf.scales.dtype if sites[0].is_quantized else sites[0].leaf.weight.dtype
    milliseconds = {}
    for rows in row_counts:
        x = mx.array(random.standard_normal((rows, sites[0].input_size)).astype(np.float32)).astype(dtype)
        mx.eval(x)
        milliseconds[rows] = _best_milliseconds(sites, x, kernels, spent_s, clock)
    return ShapeTimings(sites[0].shape_name, len(sites), milliseconds)


def _best_milliseconds(
    sites: Sequence[LinearSite],
    x: mx.array,
    kernels: Mapping[str, LinearKernel],
    spent_s: float,
    clock: Callable[[], float],
) -> dict[str, float]:
    best = dict.fromkeys(kernels, float("inf"))
    for kernel in kernels.values():
        _one_round(sites, x, kernel, clock)  # makes the weights in the form that the kernel wants
    deadline = clock() + spent_s
    rounds = 0
    while rounds < LEAST_ROUNDS or clock() < deadline:
        for path, kernel in kernels.items():
            best[path] = min(best[path], _one_round(sites, x, kernel, clock))
        rounds += 1
    return best


def _one_round(sites: Sequence[LinearSite], x: mx.array, kernel: LinearKernel, clock: Callable[[], float]) -> float:
    started = clock()
    for site in sites:
        mx.eval(kernel(site, x))
    return (clock() - started) * 1e3 / len(sites)


def _small_site() -> LinearSite:
    leaf = nn.Linear(32, 8, bias=False)
    return LinearSite("trial", leaf, leaf)
