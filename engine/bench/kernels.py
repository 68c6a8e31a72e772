"""Times linear kernels against each other on CPU, interleaved: `python -m engine.bench.kernels --help`.

Two views: one shape called again and again (its weights stay in the caches), and all linears of a model in order (its
weights do not, as in a decode step). Only ratios of one run mean anything. With `--threads 1` the clock is the
thread's own processor time, which other load on the machine hardly moves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

import click
import mlx.core as mx
import mlx.nn as nn
import numpy as np
from threadpoolctl import threadpool_limits

from engine.kernels import invariant
from engine.kernels.invariant.sites import site_weights
from engine.kernels.site import FloatArray, LinearSite
from engine.model.load import load_model

DEFAULT_SHAPES = "576x192,576x576,576x1536,1536x576,576x49152"
LARGE_PRODUCTS = 20_000_000
LARGEST_HEAD_ROWS = 8


@dataclass(frozen=True, slots=True)
class Timing:
    """Best milliseconds of each kernel for one shape (or a whole model) and row count."""

    what: str
    rows: int
    best_ms: dict[str, float]

    def ratio(self, kernel: str) -> float:
        """How many times faster `kernel` is than the faster of numpy's two."""
        return min(self.best_ms["gemv"], self.best_ms["gemm"]) / self.best_ms[kernel]


Clock = Callable[[], float]


def interleaved(
    kernels: dict[str, Callable[[], object]], clock: Clock, rounds: int, spent_s: float = 1.5
) -> dict[str, float]:
    """Best time in milliseconds of each kernel by `clock`, taking turns for `rounds` rounds or `spent_s` seconds."""
    best = dict.fromkeys(kernels, float("inf"))
    for kernel in kernels.values():
        kernel()
    deadline = time.perf_counter() + spent_s
    for _ in range(rounds):
        for name, kernel in kernels.items():
            started = clock()
            kernel()
            best[name] = min(best[name], (clock() - started) * 1e3)
        if time.perf_counter() > deadline:
            break
    return best


def gemv(weight: FloatArray, x: FloatArray) -> None:
    """Row by row through BLAS."""
    for row in x:
        np.dot(weight, row)


def time_shape(
    input_size: int, output_size: int, rows: int, bits: int, group_size: int, threads: int, clock: Clock
) -> Timing:
    """One linear of random weights, by all kernels."""
    random = np.random.default_rng(0)
    weight = mx.array(random.standard_normal((output_size, input_size)).astype(np.float32))
    packed, scales, biases = mx.quantize(weight, group_size, bits)
    dense = np.array(mx.dequantize(packed, scales, biases, group_size, bits))
    x = random.standard_normal((rows, input_size)).astype(np.float32)
    affine = invariant.affine_weights(
        *(np.array(part) for part in (packed, scales, biases)), bits=bits, group_size=group_size
    )
    unpacked = invariant.dense_weights(dense)
    kernels: dict[str, Callable[[], object]] = {
        "gemv": lambda: gemv(dense, x),
        "gemm": lambda: x @ dense.T,
        "invariant dense": lambda: invariant.linear(x, unpacked, threads=threads),
        "invariant packed": lambda: invariant.linear(x, affine, threads=threads),
    }
    if threads > 1 and rows * input_size * output_size < LARGE_PRODUCTS:
        mx_x = mx.array(x)
        kernels["mlx"] = lambda: mx.eval(
            mx.quantized_matmul(mx_x, packed, scales, biases, transpose=True, group_size=group_size, bits=bits)
        )
    return Timing(f"{input_size}x{output_size} q{bits}/{group_size}", rows, interleaved(kernels, clock, 400))


def time_model(sites: Sequence[LinearSite], rows: int, threads: int, clock: Clock) -> Timing:
    """All linears of a model one after another, each on its own weights."""
    random = np.random.default_rng(0)
    sizes = {site.input_size for site in sites}
    inputs = {size: random.standard_normal((rows, size)).astype(np.float32) for size in sizes}
    weights = [(inputs[site.input_size], site.dense_f32, site_weights(site)) for site in sites]

    def by_gemv() -> None:
        for x, dense, _ in weights:
            gemv(dense, x)

    def by_gemm() -> None:
        for x, dense, _ in weights:
            x @ dense.T

    def by_invariant() -> None:
        for x, _, stored in weights:
            invariant.linear(x, stored, threads=threads)

    kernels: dict[str, Callable[[], object]] = {
        "gemv": by_gemv,
        "gemm": by_gemm,
        "invariant packed": by_invariant,
    }
    return Timing(f"all {len(sites)} linears", rows, interleaved(kernels, clock, 30, spent_s=6.0))


def sites_of(model: nn.Module) -> list[LinearSite]:
    """Every linear of a freshly loaded model, the tied embedding as the output projection."""
    sites = []
    for path, leaf in model.named_modules():
        if isinstance(leaf, nn.Linear | nn.QuantizedLinear):
            sites.append(LinearSite(path, leaf, leaf.__call__))
        elif isinstance(leaf, nn.Embedding | nn.QuantizedEmbedding):
            sites.append(LinearSite(path, leaf, leaf.as_linear))
    return sites


def print_timing(timing: Timing) -> None:
    """One line: times, then the ratio of each of our kernels to the faster of numpy's."""
    times = "  ".join(f"{name} {ms:.4f}" for name, ms in timing.best_ms.items())
    ratios = "  ".join(f"{name} {timing.ratio(name):.2f}x" for name in timing.best_ms if name.startswith("invariant"))
    click.echo(f"{timing.what:24} rows {timing.rows:4}  ms: {times}  against numpy: {ratios}")


@click.command()
@click.option("--shapes", default=DEFAULT_SHAPES, show_default=True, help="KxN, separated by commas.")
@click.option("--rows", default="1,2,4,8,32,128,512", show_default=True, help="Row counts, separated by commas.")
@click.option("--bits", default=4, show_default=True)
@click.option("--group-size", default=32, show_default=True)
@click.option("--threads", type=int, help="Threads of BLAS and of the invariant kernels; all by default.")
@click.option("--model", help="Also time all linears of this model (GGUF file, directory or hub id) in order.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(
    shapes: str, rows: str, bits: int, group_size: int, threads: int | None, model: str | None, as_json: bool
) -> None:
    """Time numpy's GEMV and GEMM, MLX, and the invariant kernels in turn."""
    count = invariant.most_threads() if threads is None else threads
    clock = time.thread_time if count == 1 else time.perf_counter
    row_counts = [int(number) for number in rows.split(",")]
    with threadpool_limits(limits=count, user_api="blas"):
        for timing in _timings(shapes, row_counts, bits, group_size, model, count, clock):
            if as_json:
                click.echo(json.dumps(asdict(timing)))
            else:
                print_timing(timing)


def _timings(
    shapes: str,
    row_counts: list[int],
    bits: int,
    group_size: int,
    model: str | None,
    threads: int,
    clock: Clock,
) -> Iterator[Timing]:
    for shape in filter(None, shapes.split(",")):
        input_size, output_size = (int(size) for size in shape.split("x"))
        for rows in row_counts:
            if input_size * output_size <= LARGE_PRODUCTS or rows <= LARGEST_HEAD_ROWS:
                yield time_shape(input_size, output_size, rows, bits, group_size, threads, clock)
    if model is not None:
        sites = sites_of(load_model(model).model)
        for rows in row_counts:
            yield time_model(sites, rows, threads, clock)


if __name__ == "__main__":
    main()
