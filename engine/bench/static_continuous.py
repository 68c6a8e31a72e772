"""Benchmark 3: static against continuous batching, in slot-steps (exact) and in seconds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.bench.context import BenchContext
from engine.bench.meter import Measurement, measure, warm_up
from engine.bench.report import Cell, Table
from engine.bench.slots import LENGTHS, expected_static_use, measured_use, scaled
from engine.bench.statistics import interleave, percentile, spread
from engine.bench.workloads import text_requests
from engine.model.load import LoadedModel
from engine.request import Request
from engine.settings import AdmissionPolicy, EngineSettings

SLOTS = 8
PROMPT_TOKENS = 8
GROUPS = 3


def settings_of(admission: AdmissionPolicy, policy: str) -> EngineSettings:
    """Eight slots; the pool and the budget never limit, so that slots alone are compared."""
    return EngineSettings(policy=policy, admission=admission, max_active=SLOTS, token_budget=512)


ARMS = {"static": AdmissionPolicy.STATIC, "continuous": AdmissionPolicy.RESERVE}


def run(bench: BenchContext) -> tuple[Table, ...]:
    """One batch unscaled and a queue of three on the tiny model; the queue scaled down on the real one."""
    factor = bench.sized(full=20, quick=100)
    short = scaled(LENGTHS, factor)
    queue = bench.sized(full=GROUPS, quick=2)
    tables = [
        _table(bench, bench.tiny, LENGTHS, "native", 1, "One batch of eight, tiny model, unscaled"),
        _table(
            bench, bench.tiny, queued(LENGTHS, GROUPS), "native", 1, f"{GROUPS * SLOTS} requests, tiny model, unscaled"
        ),
    ]
    if bench.model_source:
        title = f"{queue * SLOTS} requests, real model, lengths divided by {factor}"
        tables.append(_table(bench, bench.model, queued(short, queue), "threshold:4", bench.rounds, title))
    return tuple(tables)


def queued(lengths: Sequence[int], groups: int) -> tuple[int, ...]:
    """The same batch several times, each time starting at another place, so that long requests do not all come last."""
    shift = len(lengths) // groups
    return tuple(length for g in range(groups) for length in (*lengths[g * shift :], *lengths[: g * shift]))


def requests_of(loaded: LoadedModel, lengths: Sequence[int]) -> list[Request]:
    """One request per output length, all with short prompts."""
    return text_requests(loaded, [PROMPT_TOKENS] * len(lengths), lengths)


def _table(
    bench: BenchContext, loaded: LoadedModel, lengths: Sequence[int], policy: str, rounds: int, title: str
) -> Table:
    requests = requests_of(loaded, lengths)
    warm_up(loaded, [settings_of(AdmissionPolicy.RESERVE, policy)])

    def arm(settings: EngineSettings) -> Callable[[], Measurement]:
        return lambda: measure(loaded, settings, requests, bench.clock)

    results = interleave({name: arm(settings_of(admission, policy)) for name, admission in ARMS.items()}, rounds)
    longest_short = sorted(lengths)[len(lengths) * 3 // 4 - 1]
    short = [request.id for request in requests if request.max_tokens <= longest_short]
    expected = expected_static_use(lengths, SLOTS)
    return Table(
        title=title,
        columns=(
            "admission",
            "steps",
            "slot-steps",
            "useful",
            "wasted",
            "tokens/s",
            "p99 end of the short ones, step",
            "p99 end-to-end of the short ones, s",
        ),
        rows=tuple(_row(name, runs, short) for name, runs in results.items()),
        notes=(
            f"By arithmetic static batching spends {expected.slot_steps} slot-steps for {expected.useful} useful ones. "
            f"The short ones are the {len(short)} requests of up to {longest_short} tokens. A slot whose request has "
            "ended costs nothing here (no padding is computed): what static batching wastes is the slot.",
        ),
    )


def _row(name: str, runs: Sequence[Measurement], short: Sequence[str]) -> tuple[Cell, ...]:
    first = runs[0]
    use = measured_use([step.committed_tokens for step in first.meter.steps], SLOTS)
    return (
        name,
        len(first.meter.steps),
        use.slot_steps,
        use.useful,
        f"{use.wasted} ({100 * use.wasted_share:.0f} %)",
        str(spread([run.tokens_per_s for run in runs])),
        int(percentile([first.meter.last_step[request_id] + 1 for request_id in short], 99)),
        str(spread([percentile([run.end_to_end_s(request_id) for request_id in short], 99) for run in runs])),
    )
