"""Benchmark 8: what row invariance costs against every other fast policy, in decode steps, a mixed load and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from mlx.utils import tree_flatten

from engine.bench.context import BenchContext
from engine.bench.meter import Measurement, measure, warm_up
from engine.bench.report import Cell, Table
from engine.bench.statistics import interleave
from engine.bench.workloads import text_requests
from engine.kernels.policy import GemmPrecision, KernelPolicy, LinearRule
from engine.model.packed import PackedModel
from engine.settings import EngineSettings

OURS = "invariant"
ARMS: Mapping[str, EngineSettings] = {
    OURS: EngineSettings(policy="invariant", max_active=8),
    "gemv": EngineSettings(policy="gemv", max_active=8),
    "gemm float32": EngineSettings(policy="gemm", gemm=GemmPrecision.F32, max_active=8),
    "threshold:3 float32": EngineSettings(policy="threshold:3", gemm=GemmPrecision.F32, max_active=8),
}
REQUESTS = 8


def run(bench: BenchContext) -> tuple[Table, ...]:
    """Decode steps of 1 to 8 rows; 8 requests at once; the weights' memory.

    `native` is left out on a CPU: MLX's own kernels there are many times slower than any of these.
    """
    warm_up(bench.model, ARMS.values())
    return (_decode_steps(bench), _mixed_load(bench), _memory(bench))


def _decode_steps(bench: BenchContext) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for count in (1, 4, 8) if bench.quick else range(1, REQUESTS + 1):
        runs = _runs(bench, count, prompt_tokens=16, output_tokens=bench.sized(full=24, quick=6))
        milliseconds = {name: 1e3 * count / max(r.decode_tokens_per_s for r in own) for name, own in runs.items()}
        rows.append((count, *(f"{value:.2f}" for value in milliseconds.values()), _ratio(milliseconds)))
    return Table(
        title=f"Decode step in ms by rows, best of {bench.rounds} rounds",
        columns=("rows", *ARMS, "invariant against the fastest other"),
        rows=tuple(rows),
        notes=("All arms of a line ran in turn within each round. Below 1.00 the invariant kernels are faster.",),
    )


def _mixed_load(bench: BenchContext) -> Table:
    tokens = bench.sized(full=128, quick=16)
    runs = _runs(bench, REQUESTS, prompt_tokens=tokens, output_tokens=tokens)
    best = {name: min(r.elapsed_s for r in own) for name, own in runs.items()}
    return Table(
        title=f"{REQUESTS} requests of {tokens} prompt and {tokens} output tokens, best of {bench.rounds} rounds",
        columns=("policy", "seconds", "output tokens/s"),
        rows=tuple((name, f"{taken:.2f}", f"{REQUESTS * tokens / taken:.1f}") for name, taken in best.items()),
        notes=(f"Time of invariant against the fastest other: {_ratio(best)}.",),
    )


def _memory(bench: BenchContext) -> Table:
    held = sum(array.nbytes for _, array in tree_flatten(bench.model.model.parameters()))
    with PackedModel(bench.model.model, KernelPolicy(LinearRule(OURS))) as packed:
        read = [array for site in packed.sites.values() for array in site.invariant_weights.arrays]
        added = sum(array.nbytes for array in read if array.flags.owndata)
        dense = sum(site.input_size * site.output_size * 4 for site in packed.sites.values())
    file = Path(bench.model_source or "")
    stored = (("in the file", f"{file.stat().st_size / 2**20:.1f}"),) if file.is_file() else ()
    return Table(
        title="Memory of the weights in MiB",
        columns=("what", "MiB"),
        rows=(
            *stored,
            ("as loaded", f"{held / 2**20:.1f}"),
            ("invariant: copies beside them", f"{added / 2**20:.1f}"),
            ("gemv and gemm: dense float32 copies beside them", f"{dense / 2**20:.1f}"),
        ),
    )


def _runs(bench: BenchContext, requests: int, prompt_tokens: int, output_tokens: int) -> dict[str, list[Measurement]]:
    workload = text_requests(bench.model, [prompt_tokens] * requests, [output_tokens] * requests)

    def arm(settings: EngineSettings) -> Callable[[], Measurement]:
        return lambda: measure(bench.model, settings, workload, bench.clock)

    return interleave({name: arm(settings) for name, settings in ARMS.items()}, bench.rounds)


def _ratio(values: Mapping[str, float]) -> str:
    return f"{values[OURS] / min(value for name, value in values.items() if name != OURS):.2f}"
