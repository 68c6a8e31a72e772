"""Benchmark 5: this engine against mlx-lm's BatchGenerator and generate_step, in turn, on the same requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from engine.bench.context import BenchContext
from engine.bench.meter import measure, warm_up
from engine.bench.mlx_lm_baseline import BaselineRun, batch_generator, one_at_a_time, useful_rows
from engine.bench.report import Cell, Table
from engine.bench.statistics import interleave, spread
from engine.bench.workloads import text_requests
from engine.request import Request
from engine.settings import EngineSettings

ACTIVE = 8
CHUNK_TOKENS = 64
PROMPTS = (6, 20, 9, 32, 14, 24, 8, 28)
DEFAULT_POLICY = EngineSettings().policy
POLICIES = (DEFAULT_POLICY, "native", "invariant")


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one arm, in the terms that all arms share."""

    tokens_per_s: float
    mean_time_to_first_token_s: float
    computed_rows: int
    outputs: Mapping[str, Sequence[int]]


def run(bench: BenchContext) -> tuple[Table, ...]:
    """Throughput, TTFT and rows of all arms."""
    output = bench.sized(full=12, quick=3)
    requests = text_requests(bench.model, PROMPTS, [output] * len(PROMPTS))
    warm_up(bench.model, [_settings(policy) for policy in POLICIES])
    results = interleave(arms_of(bench, requests), bench.rounds)
    useful = useful_rows(requests)
    reference = results["BatchGenerator"]
    return (
        Table(
            title=f"{len(requests)} requests, prompts of {min(PROMPTS)} to {max(PROMPTS)} tokens, outputs of {output}",
            columns=("engine", "tokens/s", "against BatchGenerator", "mean TTFT s", "rows computed", "of them useful"),
            rows=tuple(_row(name, runs, reference, useful) for name, runs in results.items()),
            notes=(
                f"{ACTIVE} slots, chunks of {CHUNK_TOKENS} tokens, greedy, no end-of-text. BatchGenerator pads the "
                f"prompts of a chunk to one length and runs one step ahead of its output; {useful} rows are needed. "
                + _agreement(results),
            ),
        ),
    )


def arms_of(bench: BenchContext, requests: Sequence[Request]) -> dict[str, Callable[[], Outcome]]:
    """mlx-lm's two ways, and this engine under three policies."""
    model = bench.model.model

    def ours(policy: str) -> Callable[[], Outcome]:
        return lambda: _ours(bench, _settings(policy), requests)

    return {
        "BatchGenerator": lambda: _theirs(batch_generator(model, requests, ACTIVE, CHUNK_TOKENS, bench.clock)),
        "generate_step, one at a time": lambda: _theirs(one_at_a_time(model, requests, CHUNK_TOKENS, bench.clock)),
        f"this engine, {DEFAULT_POLICY} (default)": ours(DEFAULT_POLICY),
        "this engine, native": ours("native"),
        "this engine, invariant": ours("invariant"),
    }


def _settings(policy: str) -> EngineSettings:
    return EngineSettings(policy=policy, max_active=ACTIVE, token_budget=CHUNK_TOKENS)


def _ours(bench: BenchContext, settings: EngineSettings, requests: Sequence[Request]) -> Outcome:
    run = measure(bench.model, settings, requests, bench.clock)
    ttft = [run.time_to_first_token_s(request.id) for request in requests]
    outputs = {name: done.tokens for name, done in run.completions.items()}
    return Outcome(run.tokens_per_s, sum(ttft) / len(ttft), run.packed_rows, outputs)


def _theirs(run: BaselineRun) -> Outcome:
    return Outcome(run.tokens_per_s, run.mean_time_to_first_token_s, run.computed_rows, run.outputs)


def _row(name: str, runs: Sequence[Outcome], reference: Sequence[Outcome], useful: int) -> tuple[Cell, ...]:
    ratio = spread([ours.tokens_per_s / theirs.tokens_per_s for ours, theirs in zip(runs, reference, strict=True)])
    return (
        name,
        str(spread([run.tokens_per_s for run in runs])),
        f"{ratio}x",
        str(spread([run.mean_time_to_first_token_s for run in runs])),
        runs[0].computed_rows,
        f"{100 * useful / runs[0].computed_rows:.0f} %",
    )


def _agreement(results: Mapping[str, Sequence[Outcome]]) -> str:
    reference = results["BatchGenerator"][0].outputs
    counts = {
        name: sum(list(runs[0].outputs[request]) == list(tokens) for request, tokens in reference.items())
        for name, runs in results.items()
        if name != "BatchGenerator"
    }
    told = ", ".join(f"{name}: {count}" for name, count in counts.items())
    return f"Requests of {len(reference)} with the same tokens as BatchGenerator: {told}."
