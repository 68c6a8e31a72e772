"""Benchmark 1: decode throughput of row-wise GEMV and of GEMM, by the number of requests that decode together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from engine.bench.context import BenchContext
from engine.bench.meter import Measurement, measure, warm_up
from engine.bench.report import Cell, Table
from engine.bench.statistics import Spread, interleave, spread
from engine.bench.workloads import text_requests
from engine.settings import EngineSettings

PROMPT_TOKENS = 16
ARMS: Mapping[str, EngineSettings] = {
    "serial": EngineSettings(policy="gemv", max_active=1),
    "batched GEMM": EngineSettings(policy="gemm", max_active=8),
    "batched row-wise GEMV": EngineSettings(policy="gemv", max_active=8),
    "batched threshold:4": EngineSettings(policy="threshold:4", max_active=8),
    "batched invariant": EngineSettings(policy="invariant", max_active=8),
}


def run(bench: BenchContext) -> tuple[Table, ...]:
    """Decode tokens per second of every arm at 1 to 8 requests, prefill left out."""
    counts = (1, 2, 4, 8) if bench.quick else tuple(range(1, 9))
    warm_up(bench.model, ARMS.values())
    rows: list[tuple[Cell, ...]] = []
    for count in counts:
        speeds = decode_speeds(bench, count)
        gemm, gemv = speeds["batched GEMM"].mean, speeds["batched row-wise GEMV"].mean
        rows.append((count, *(str(speed) for speed in speeds.values()), f"{100 * gemv / gemm:.1f} %"))
    return (
        Table(
            title=f"Decode throughput in tokens/s by concurrency ({bench.rounds} rounds, mean ± sd)",
            columns=("requests", *ARMS, "GEMV/GEMM"),
            rows=tuple(rows),
            notes=(
                "Serial runs the same requests one after another. All arms of a line ran in turn within each round; "
                "only ratios within a line compare. GEMM multiplies operands rounded to half (the default precision).",
            ),
        ),
    )


def decode_speeds(bench: BenchContext, requests: int) -> dict[str, Spread]:
    """Decode throughput of every arm with so many requests."""
    tokens = bench.sized(full=12, quick=5)
    workload = text_requests(bench.model, [PROMPT_TOKENS] * requests, [tokens] * requests)

    def arm(settings: EngineSettings) -> Callable[[], Measurement]:
        return lambda: measure(bench.model, settings, workload, bench.clock)

    results = interleave({name: arm(settings) for name, settings in ARMS.items()}, bench.rounds)
    return {name: spread([run.decode_tokens_per_s for run in runs]) for name, runs in results.items()}
