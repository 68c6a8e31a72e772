"""Traces of the real engine: whatever the schedule, forced GEMV aligns without a difference, a threshold is
explained.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import DiffResult, Outcome
from divtrace.origin.find import find_origins
from divtrace.origin.records import OriginKind, OriginResult
from divtrace.recorder.recorder import Recorder
from divtrace.trace.reader import Trace, open_trace
from engine.engine import Engine
from engine.request import Arrival, Request
from engine.settings import parse_settings
from fixtures.tiny_models import tiny_model

MODEL = tiny_model("llama")
QUIET = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def request_lists(draw: st.DrawFn) -> list[Request]:
    shared = draw(st.lists(st.integers(5, 90), min_size=0, max_size=20))
    return [
        Request(
            f"r{number}",
            (*shared, *draw(st.lists(st.integers(5, 90), min_size=1, max_size=12))),
            draw(st.integers(1, 10)),
            ignore_eos=True,
            arrival=Arrival(at_step=draw(st.integers(0, 4))),
        )
        for number in range(draw(st.integers(1, 4)))
    ]


@st.composite
def arms(draw: st.DrawFn) -> dict[str, Any]:
    """Settings that change batches and memory, never the mathematics. Few blocks make preemption likely."""
    return {
        "max_active": draw(st.integers(1, 4)),
        "token_budget": draw(st.sampled_from([8, 16, 512])),
        "block_size": 4,
        "kv_blocks": draw(st.sampled_from([16, 64])),
        "admission": draw(st.sampled_from(["reserve", "optimistic"])),
        "prefix_cache": draw(st.booleans()),
        "speculation": {
            "drafter": draw(st.sampled_from(["none", "prompt-lookup", "self"])),
            "tokens": 3,
            "self_layers": 1,
        },
    }


def record(path: Path, requests: Sequence[Request], arm: dict[str, Any], policy: str) -> Path:
    resolved = parse_settings({**arm, "policy": policy}, "test")
    with Engine(MODEL, resolved, [Recorder(path)]) as engine:
        for request in requests:
            engine.submit(request)
        engine.run()
    return path


@QUIET
@given(requests=request_lists(), first=arms(), second=arms())
def test_forced_gemv_shows_no_difference_and_leaves_no_row_unmatched(
    requests: list[Request], first: dict[str, Any], second: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [record(Path(folder) / f"{n}.h5", requests, arm, "gemv") for n, arm in (("a", first), ("b", second))]
        with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
            result = diff_traces(a, b)
            assert result.outcome in (Outcome.NONE_SEEN, Outcome.NOTHING_COMPARED)
            assert all(r.unmatched_kv_rows == 0 for r in result.requests)
            assert not any(found.faults for found in _walks(a, b, result))


@QUIET
@given(requests=request_lists(), first=arms(), second=arms())
def test_every_origin_of_a_threshold_has_a_path_or_a_selector_input_that_changed(
    requests: list[Request], first: dict[str, Any], second: dict[str, Any]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            record(Path(folder) / f"{n}.h5", requests, arm, "threshold:4") for n, arm in (("a", first), ("b", second))
        ]
        with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
            for found in _walks(a, b, diff_traces(a, b)):
                assert not found.faults
                assert bool(found.origins) == bool(found.differing_rows or found.logits_differ)
                for origin in found.origins:
                    assert origin.kind in (OriginKind.KERNEL_PATH, OriginKind.SELECTOR_INPUT)
                    assert bool(origin.crossings) or origin.kind is OriginKind.SELECTOR_INPUT
                    for crossing in origin.crossings:
                        assert min(crossing.rows_a, crossing.rows_b) <= 4 < max(crossing.rows_a, crossing.rows_b)


def _walks(a: Trace, b: Trace, result: DiffResult) -> list[OriginResult]:
    return [find_origins(a, b, r.id_a) for r in result.requests if r.compared_tokens]
