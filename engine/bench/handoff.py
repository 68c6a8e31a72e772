"""Benchmark 2: a request joins another one, and four requests of very different prompts, at several active limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from engine.bench.context import BenchContext
from engine.bench.meter import Measurement, measure, warm_up
from engine.bench.report import Cell, Table
from engine.bench.statistics import interleave, spread
from engine.bench.workloads import repeating_prompt
from engine.model.load import LoadedModel
from engine.request import Arrival, Request
from engine.settings import DrafterKind, EngineSettings, SpeculationSettings

HANDOFF_PROMPTS = (128, 121)
MIXED_PROMPTS = (123, 1068, 125, 998)
SPECULATION = SpeculationSettings(drafter=DrafterKind.PROMPT_LOOKUP, tokens=4, bonus=False)
POLICIES = ("threshold:4", "gemv")


def run(bench: BenchContext) -> tuple[Table, ...]:
    """Both workloads under both policies."""
    scale = bench.sized(full=8, quick=16)
    output = bench.sized(full=32, quick=12)
    warm_up(bench.model, [EngineSettings(policy=policy) for policy in POLICIES])
    return (
        _table(bench, "Two-request handoff", handoff(bench.model, HANDOFF_PROMPTS, output), (1, 2), 1),
        _table(
            bench, "Four requests of mixed length", mixed(bench.model, MIXED_PROMPTS, output // 2, scale), (1, 4), scale
        ),
    )


def handoff(loaded: LoadedModel, prompt_tokens: Sequence[int], max_tokens: int) -> list[Request]:
    """An anchor, and a follower that is submitted when the anchor's first token is out."""
    anchor, follower = _requests(loaded, prompt_tokens, max_tokens)
    return [anchor, replace(follower, arrival=Arrival(0, anchor.id, 1))]


def mixed(loaded: LoadedModel, prompt_tokens: Sequence[int], max_tokens: int, scale: int) -> list[Request]:
    """Requests of mixed prompt lengths, divided by `scale`, submitted together."""
    lengths = [max(1, length // scale) for length in prompt_tokens]
    return _requests(loaded, lengths, max_tokens)


def _requests(loaded: LoadedModel, prompt_tokens: Sequence[int], max_tokens: int) -> list[Request]:
    return [
        Request(f"r{index}", repeating_prompt(loaded, length, index), max_tokens, ignore_eos=True)
        for index, length in enumerate(prompt_tokens)
    ]


def _table(bench: BenchContext, title: str, requests: Sequence[Request], limits: Sequence[int], scale: int) -> Table:
    def arm(policy: str, limit: int) -> Callable[[], Measurement]:
        settings = EngineSettings(policy=policy, max_active=limit, speculation=SPECULATION)
        return lambda: measure(bench.model, settings, requests, bench.clock)

    arms = {f"{policy}, limit {limit}": arm(policy, limit) for policy in POLICIES for limit in limits}
    results = interleave(arms, bench.rounds)
    prompts = ", ".join(str(len(request.prompt)) for request in requests)
    scaled = f" (prompts divided by {scale})" if scale > 1 else ""
    return Table(
        title=f"{title}: prompts of {prompts} tokens{scaled}, {requests[0].max_tokens} output tokens each",
        columns=("arm", "mean TTFT s", "first request end-to-end s", "tokens/s", "rows", "accepted drafts"),
        rows=tuple(_row(name, runs) for name, runs in results.items()),
        notes=(
            f"Prompt lookup, {SPECULATION.tokens} proposals, as many rows as proposals (no bonus token). Acceptance is "
            "a count of one run; it repeats exactly, or it is marked. Prompts repeat one passage, so that there is "
            "something to look up.",
        ),
        facts={"tokens": {name: _outputs(runs) for name, runs in results.items()}},
    )


def _row(name: str, runs: Sequence[Measurement]) -> tuple[Cell, ...]:
    first = runs[0]
    names = list(first.completions)
    ttft = spread([sum(run.time_to_first_token_s(n) for n in names) / len(names) for run in runs])
    acceptance = {(run.meter.accepted_tokens, run.meter.proposed_tokens) for run in runs}
    accepted, proposed = first.meter.accepted_tokens, first.meter.proposed_tokens
    share = f" = {100 * accepted / proposed:.1f} %" if proposed else ""
    return (
        name,
        str(ttft),
        str(spread([run.end_to_end_s(names[0]) for run in runs])),
        str(spread([run.tokens_per_s for run in runs])),
        first.packed_rows,
        f"{accepted}/{proposed}{share}" + ("" if len(acceptance) == 1 else " (varies between rounds)"),
    )


def _outputs(runs: Sequence[Measurement]) -> dict[str, list[int]]:
    return {name: list(done.tokens) for name, done in runs[0].completions.items()}
