"""The backward walk against an oracle that remembers what every row really read."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import Outcome
from divtrace.origin.find import find_origins
from divtrace.trace.reader import open_trace
from engine.request import Request
from tests.divtrace.origin.schedules import Schedule, serve
from tests.divtrace.origin.worlds import PathRule, World, true_origins

QUIET = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)


def threshold_rule(limit: int) -> PathRule:
    return lambda _step, _site, rows: "gemv" if rows <= limit else "gemm"


def always_gemv(_step: int, _site: str, _rows: int) -> str:
    return "gemv"


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    """Two to four requests; prompts may share their beginning, so that prefixes can be reused."""
    shared = draw(st.lists(st.integers(2, 15), min_size=0, max_size=13))
    count = draw(st.integers(2, 5))
    return [
        Request(
            f"r{number}",
            (*shared, *draw(st.lists(st.integers(2, 15), min_size=1, max_size=6))),
            draw(st.integers(1, 8)),
        )
        for number in range(count)
    ]


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    return Schedule(
        max_active=draw(st.integers(1, 3)),
        chunk=draw(st.sampled_from([2, 3, 5, 64])),
        speculate=draw(st.integers(0, 3)),
        preempt_every=draw(st.sampled_from([0, 0, 3, 5])),
        reuse_prefix=draw(st.booleans()),
        arrivals={f"r{number}": draw(st.integers(0, 5)) for number in range(5)},
    )


@QUIET
@given(
    requests=request_lists(),
    first=schedules(),
    second=schedules(),
    limit=st.integers(1, 6),
    flip=st.booleans(),
    back=st.integers(0, 7),
)
def test_origins_are_exactly_those_that_the_oracle_knows(
    requests: list[Request], first: Schedule, second: Schedule, limit: int, flip: bool, back: int
) -> None:
    ties = frozenset((r.id, len(r.prompt) + r.max_tokens - 1) for r in requests) if flip else frozenset()
    worlds = [serve(World(threshold_rule(limit), ties=ties), requests, arm) for arm in (first, second)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [world.write(Path(folder) / f"{name}.h5") for name, world in zip("ab", worlds, strict=True)]
        with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
            for request in requests:
                left, right = (world.flows[request.id].decided for world in worlds)
                at = max(min(len(left), len(right)) - 1 - back, 0)
                found = find_origins(a, b, request.id, left[at].position)
                steps = {(o.step_a, o.step_b) for o in found.origins if o.tensor != "token"}
                assert steps == true_origins(left[at], right[at])


@QUIET
@given(requests=request_lists(), first=schedules(), second=schedules())
def test_arms_that_only_schedule_differently_show_no_difference(
    requests: list[Request], first: Schedule, second: Schedule
) -> None:
    worlds = [serve(World(always_gemv), requests, arm) for arm in (first, second)]
    with tempfile.TemporaryDirectory() as folder:
        paths = [world.write(Path(folder) / f"{name}.h5") for name, world in zip("ab", worlds, strict=True)]
        with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
            result = diff_traces(a, b)
            assert result.outcome is Outcome.NONE_SEEN
            assert result.compared.tokens == sum(r.max_tokens for r in requests)
            assert result.compared.kv_rows > 0
            assert all(r.unmatched_kv_rows == 0 for r in result.requests)
            with pytest.raises(Exception, match="nothing to explain"):
                find_origins(a, b)
