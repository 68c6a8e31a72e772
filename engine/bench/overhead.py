"""Benchmark 6: where a decode step of eight rows spends its time; how much of it is Python around the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import BatchKVCache

from engine.bench.context import BenchContext
from engine.bench.meter import Clock
from engine.bench.report import Cell, Table
from engine.bench.statistics import percentile
from engine.bench.workloads import text_requests
from engine.engine import Engine
from engine.kernels.dispatch import LinearCall
from engine.model.invariant_attention import InvariantAttention
from engine.settings import EngineSettings

ROWS = 8
PROMPT_TOKENS = 32
PARTS = ("step", "linears", "attention", "kv_memory", "logits", "outside_forward", "python")
POLICIES = ("threshold:4", "gemv", "invariant")


@dataclass(slots=True)
class StepSplit:
    """Seconds of one step. `linears` includes the MLX work that a linear's input waits for (norms, rope, attention).

    `attention` is our own kernel's, where the policy takes it.
    """

    step: float = 0.0
    linears: float = 0.0
    attention: float = 0.0
    kv_memory: float = 0.0
    logits: float = 0.0
    forward: float = 0.0

    @property
    def outside_forward(self) -> float:
        """Scheduling, sampling and committing."""
        return self.step - self.forward

    @property
    def python(self) -> float:
        """What is neither kernels nor memory: scheduling, graph building, dispatch, sampling, bookkeeping."""
        return self.step - self.linears - self.attention - self.kv_memory - self.logits

    @property
    def python_share(self) -> float:
        """Of the step, 0 to 1."""
        return self.python / self.step


def run(bench: BenchContext) -> tuple[Table, ...]:
    """Medians over steps, policy by policy, steps in turn."""
    steps = bench.sized(full=40, quick=8)
    splits = {policy: split_steps(bench, policy, steps) for policy in POLICIES}
    rows: list[tuple[Cell, ...]] = []
    for policy, taken in splits.items():
        medians = [1e3 * percentile([getattr(split, part) for split in taken], 50) for part in PARTS]
        share = percentile([split.python_share for split in taken], 50)
        rows.append((policy, *(f"{median:.2f}" for median in medians), f"{100 * share:.1f} %"))
    return (
        Table(
            title=f"One decode step of {ROWS} rows, median of {steps} steps, ms",
            columns=(
                "policy",
                "step",
                "linears, and the MLX work they wait for",
                "our attention",
                "K/V memory",
                "logits",
                "outside the forward",
                "Python",
                "Python share",
            ),
            rows=tuple(rows),
            notes=(
                "Python is the step less linears, attention, K/V memory and the last evaluation: scheduling, mlx-lm's "
                "own graph building, dispatch, attention calls, sampling, bookkeeping, and the clock itself. Of it, "
                f"mlx-lm's own graph building takes {1e3 * graph_building_s(bench, min(steps, 6)):.2f} ms (a plain "
                "batched decode of as many rows).",
            ),
        ),
    )


def split_steps(bench: BenchContext, policy: str, steps: int) -> list[StepSplit]:
    """Decode steps of eight requests, taken apart."""
    requests = text_requests(bench.model, [PROMPT_TOKENS] * ROWS, [steps + 8] * ROWS)
    splits: list[StepSplit] = []
    with Engine(bench.model, EngineSettings(policy=policy, max_active=ROWS)) as engine:
        for request in requests:
            engine.submit(request)
        for _ in range(4):
            engine.step()
        for _ in range(steps):
            split = StepSplit()
            with watched(engine, split, bench.clock):
                started = bench.clock()
                engine.step()
                split.step = bench.clock() - started
            splits.append(split)
    return splits


@contextmanager
def watched(engine: Engine, split: StepSplit, clock: Clock) -> Iterator[None]:
    """Add up the time of one step's kernels and memory, by standing in for methods and kernels of this one engine."""
    packed, store, calls = engine.packed, engine.store, engine.packed.dispatcher._linears

    def timed(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            started = clock()
            result = function(*arguments, **named)
            setattr(split, part, getattr(split, part) + clock() - started)
            return result

        return call

    remembered = dict(calls)
    calls.update({key: LinearCall(c.choice, timed("linears", c.kernel)) for key, c in remembered.items()})
    replaced: list[tuple[Any, str, str]] = [
        (InvariantAttention, "attend", "attention"),
        (store, "read", "kv_memory"),
        (store, "write", "kv_memory"),
        (packed, "_to_numpy", "logits"),
        (packed, "forward", "forward"),
    ]
    own = [vars(owner).get(name) for owner, name, _ in replaced]
    for owner, name, part in replaced:
        setattr(owner, name, timed(part, getattr(owner, name)))
    try:
        yield
    finally:
        calls.update(remembered)
        for (owner, name, _), before in zip(replaced, own, strict=True):
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)


def graph_building_s(bench: BenchContext, steps: int) -> float:
    """Median seconds that mlx-lm's own Python takes to describe a decode of as many rows, computing nothing."""
    model = bench.model.model
    caches = [BatchKVCache([0] * ROWS) for _ in range(bench.model.layers)]
    taken = []
    for _ in range(steps):
        started = bench.clock()
        logits = model(mx.zeros((ROWS, 1), mx.int32), cache=caches)
        taken.append(bench.clock() - started)
        mx.eval(logits)
    return percentile(taken, 50)
