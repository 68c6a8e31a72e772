"""mlx-lm's own generation, measured from outside: BatchGenerator, and generate_step one request at a time.

Calls their public interfaces on the uninstrumented model. Rows are counted by a subclass that the model is given for
the time of the measurement; tokens are not changed by it. mlx-lm 0.32.2: `mlx_lm/generate.py`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from engine.bench.meter import Clock
from engine.request import Request


@dataclass(slots=True)
class BaselineRun:
    """`computed_rows` counts every row of every forward (padding too), `outputs` are token ids by request id."""

    elapsed_s: float = 0.0
    computed_rows: int = 0
    first_token_s: dict[str, float] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)

    @property
    def output_tokens(self) -> int:
        """Tokens of all requests."""
        return sum(len(tokens) for tokens in self.outputs.values())

    @property
    def tokens_per_s(self) -> float:
        """Output tokens by time."""
        return self.output_tokens / self.elapsed_s

    @property
    def mean_time_to_first_token_s(self) -> float:
        """Mean over the requests, from the start of the run."""
        return sum(self.first_token_s.values()) / len(self.first_token_s)


def useful_rows(requests: Sequence[Request]) -> int:
    """Rows that no engine without speculation can avoid: every prompt token and every output token but the last."""
    return sum(len(request.prompt) + request.max_tokens - 1 for request in requests)


@contextmanager
def counted_rows(model: nn.Module, run: BaselineRun) -> Iterator[None]:
    """Count rows of the model's forwards into `run`."""
    original: type[Any] = type(model)

    class Counting(original):
        """The model's own class, counting the ids it is called with."""

        def __call__(self, inputs: mx.array, *rest: Any, **named: Any) -> Any:
            """Count, then call."""
            run.computed_rows += inputs.size
            return super().__call__(inputs, *rest, **named)

    model.__class__ = Counting
    try:
        yield
    finally:
        model.__class__ = original


def batch_generator(
    model: nn.Module, requests: Sequence[Request], active: int, chunk_tokens: int, clock: Clock = time.perf_counter
) -> BaselineRun:
    """All requests through one BatchGenerator with as many slots, and prefill chunks as long, as our engine has."""
    generate = importlib.import_module("mlx_lm.generate")
    run = BaselineRun(outputs={request.id: [] for request in requests})
    with counted_rows(model, run):
        generator = generate.BatchGenerator(
            model,
            completion_batch_size=active,
            prefill_batch_size=min(active, 8),
            prefill_step_size=chunk_tokens,
        )
        started = clock()
        uids = generator.insert([list(r.prompt) for r in requests], [r.max_tokens for r in requests])
        names = dict(zip(uids, (request.id for request in requests), strict=True))
        open_requests = len(requests)
        while open_requests:
            for response in generator.next_generated():
                name = names[response.uid]
                run.first_token_s.setdefault(name, clock() - started)
                run.outputs[name].append(int(response.token))
                open_requests -= response.finish_reason is not None
        mx.synchronize(generator.stream)
        run.elapsed_s = clock() - started
        generator.close()
    return run


def one_at_a_time(
    model: nn.Module, requests: Sequence[Request], chunk_tokens: int, clock: Clock = time.perf_counter
) -> BaselineRun:
    """The requests one after another through generate_step, greedy."""
    generate = importlib.import_module("mlx_lm.generate")
    run = BaselineRun(outputs={request.id: [] for request in requests})
    with counted_rows(model, run):
        started = clock()
        for request in requests:
            steps = generate.generate_step(
                mx.array(request.prompt), model, max_tokens=request.max_tokens, prefill_step_size=chunk_tokens
            )
            for token, _ in steps:
                run.first_token_s.setdefault(request.id, clock() - started)
                run.outputs[request.id].append(int(token))
        run.elapsed_s = clock() - started
    return run
