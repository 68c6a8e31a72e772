"""Benchmark 4: short and long requests at once. Did they queue on K/V blocks or on compute?

The usual way to tell is to halve the longest request and look at the short ones' tail latency. This engine also knows,
step by step, what the first waiting request lacked; the table shows both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from engine.bench.context import BenchContext
from engine.bench.meter import Measurement, measure, warm_up
from engine.bench.report import Cell, Table
from engine.bench.statistics import interleave, percentile, spread
from engine.bench.waiting import mean_use_of_blocks, verdict, waiting_shares
from engine.bench.workloads import text_requests
from engine.model.load import LoadedModel
from engine.request import Request
from engine.settings import AdmissionPolicy, EngineSettings


@dataclass(frozen=True, slots=True)
class Size:
    """How much is asked for. `short` and `long` are output lengths; half of `requests` are of each kind."""

    requests: int
    short: int
    long: int
    prompt_tokens: int
    max_active: int
    token_budget: int
    kv_blocks: int
    max_model_length: int


UNSCALED = Size(100, 16, 512, 64, max_active=32, token_budget=256, kv_blocks=288, max_model_length=576)
EIGHTH = Size(100, 2, 64, 8, max_active=32, token_budget=64, kv_blocks=36, max_model_length=72)
"""The same with every length and the pool divided by eight, and rows enough for every slot and a few prompts."""
SCALED = Size(16, 4, 24, 16, max_active=8, token_budget=64, kv_blocks=12, max_model_length=48)
SMALLEST = Size(8, 2, 10, 12, max_active=4, token_budget=32, kv_blocks=4, max_model_length=32)


def run(bench: BenchContext) -> tuple[Table, ...]:
    """The tiny model unscaled (quick: lengths divided by eight); the real one scaled down."""
    lengths = "an eighth of the lengths" if bench.quick else "unscaled"
    size = EIGHTH if bench.quick else UNSCALED
    tables = [_table(bench, bench.tiny, size, "native", 1, f"{size.requests} requests, tiny model, {lengths}")]
    if bench.model_source:
        size = SMALLEST if bench.quick else SCALED
        title = f"{size.requests} requests, real model, outputs of {size.short} and {size.long} tokens"
        tables.append(_table(bench, bench.model, size, "threshold:4", bench.rounds, title))
    return tuple(tables)


def requests_of(loaded: LoadedModel, size: Size) -> list[Request]:
    """Short and long requests in turn, all submitted at once."""
    outputs = [size.short if index % 2 else size.long for index in range(size.requests)]
    return text_requests(loaded, [size.prompt_tokens] * size.requests, outputs)


def shortened(requests: Sequence[Request], max_model_length: int) -> list[Request]:
    """What a server does with requests longer than its limit: they end when the limit is reached."""
    return [replace(r, max_tokens=min(r.max_tokens, max_model_length - len(r.prompt))) for r in requests]


def arms_of(size: Size, policy: str) -> Mapping[str, EngineSettings]:
    """The run, its reruns, and a control with blocks in plenty."""
    base = EngineSettings(
        policy=policy,
        max_active=size.max_active,
        token_budget=size.token_budget,
        kv_blocks=size.kv_blocks,
        max_model_length=size.max_model_length,
    )
    plenty = size.max_active * -(-size.max_model_length // base.block_size)
    return {
        "as it is": base,
        "max_model_length halved": base.model_copy(update={"max_model_length": size.max_model_length // 2}),
        "chunked prefill off": base.model_copy(update={"chunked_prefill": False}),
        "optimistic admission": base.model_copy(update={"admission": AdmissionPolicy.OPTIMISTIC}),
        "blocks in plenty": base.model_copy(update={"kv_blocks": plenty}),
    }


def _table(bench: BenchContext, loaded: LoadedModel, size: Size, policy: str, rounds: int, title: str) -> Table:
    requests = requests_of(loaded, size)
    arms = arms_of(size, policy)
    warm_up(loaded, [arms["blocks in plenty"]])

    def arm(settings: EngineSettings) -> Callable[[], Measurement]:
        fitting = shortened(requests, settings.max_model_length)
        return lambda: measure(loaded, settings, fitting, bench.clock)

    results = interleave({name: arm(settings) for name, settings in arms.items()}, rounds)
    short = [request.id for request in requests if request.max_tokens == size.short]
    return Table(
        title=title,
        columns=(
            "run",
            "p99 end of the short ones, step",
            "p99 end-to-end of the short ones, s",
            "TTFT p50 / p99, s",
            "inter-token p50 / p99, ms",
            "tokens/s",
            "blocks in use",
            "preemptions",
            "waited for",
        ),
        rows=tuple(_row(name, runs, short, arms[name]) for name, runs in results.items()),
        notes=(
            f"{size.requests} requests of {size.prompt_tokens} prompt tokens arrive at once, outputs of {size.short} "
            f"and {size.long} tokens in turn; {size.max_active} slots, {size.token_budget} rows a step, "
            f"{size.kv_blocks} blocks of 16 tokens. `waited for`: what the first waiting request lacked, weighted by "
            "the requests waiting.",
        ),
        facts={name: _over_time(runs[0], arms[name]) for name, runs in results.items()},
    )


def _row(name: str, runs: Sequence[Measurement], short: Sequence[str], settings: EngineSettings) -> tuple[Cell, ...]:
    first = runs[0]
    ttft = [first.time_to_first_token_s(request_id) for request_id in first.finished]
    gaps_ms = [1e3 * gap for times in first.meter.requests.values() for gap in times.burst_gaps_s]
    return (
        name,
        int(percentile([first.meter.last_step[request_id] + 1 for request_id in short], 99)),
        str(spread([percentile([run.end_to_end_s(request_id) for request_id in short], 99) for run in runs])),
        f"{percentile(ttft, 50):.3g} / {percentile(ttft, 99):.3g}",
        f"{percentile(gaps_ms, 50):.3g} / {percentile(gaps_ms, 99):.3g}",
        str(spread([run.tokens_per_s for run in runs])),
        f"{100 * mean_use_of_blocks(first.meter.steps):.0f} %",
        sum(step.preempted for step in first.meter.steps),
        verdict(waiting_shares(first.meter.steps, settings)),
    )


def _over_time(run: Measurement, settings: EngineSettings) -> dict[str, object]:
    """Waiting, blocks and preemptions in ten parts of the run, and all shares of waiting."""
    steps = run.meter.steps
    edges = [len(steps) * part // 10 for part in range(11)]
    parts = [steps[first:last] for first, last in pairwise(edges) if last > first]
    return {
        "mean_waiting": [sum(s.waiting for s in part) / len(part) for part in parts],
        "mean_block_use": [mean_use_of_blocks(part) for part in parts],
        "preemptions": [sum(s.preempted for s in part) for part in parts],
        "waiting_shares": {reason.value: share for reason, share in waiting_shares(steps, settings).items()},
    }
