"""Settings and hashes compared, what can change the result first."""

from __future__ import annotations

from pathlib import Path

import pytest

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.inputs import effect_of
from divtrace.divergence.records import DiffResult, Effect, Outcome
from divtrace.trace.reader import open_trace
from engine.batch import SegmentKind
from engine.request import SamplingParams
from tests.divtrace.trace.builders import TraceBuilder, segment


def run(prompt: tuple[int, ...] = (5, 6, 7), sampling: SamplingParams | None = None, **facts: object) -> TraceBuilder:
    builder = TraceBuilder(**facts)  # type: ignore[arg-type]
    builder.request("r", prompt, 2, sampling)
    builder.step(segment("r", SegmentKind.PREFILL, 0, prompt, chosen=(9,)))
    builder.step(segment("r", SegmentKind.DECODE, len(prompt), (9,), chosen=(10,)))
    builder.finish("r")
    return builder


def diff_of(folder: Path, a: TraceBuilder, b: TraceBuilder) -> DiffResult:
    paths = a.write(folder / "a.h5"), b.write(folder / "b.h5")
    with open_trace(paths[0]) as left, open_trace(paths[1]) as right:
        return diff_traces(left, right)


def test_settings_come_in_the_order_of_what_they_can_change(tmp_path: Path) -> None:
    a = run(settings={"note": 1, "scheduler": {"max_active": 1}, "kernels": {"linear": "gemv"}})
    b = run(settings={"scheduler": {"max_active": 2}, "kernels": {"linear": "gemm"}}, sampling=SamplingParams(seed=4))
    found = diff_of(tmp_path, a, b).inputs.differences
    assert [(d.path, d.a, d.b, d.effect) for d in found] == [
        ("requests.r.sampling.seed", "0", "4", Effect.RESULT),
        ("settings.kernels.linear", '"gemv"', '"gemm"', Effect.NUMERICS),
        ("settings.scheduler.max_active", "1", "2", Effect.BATCHING),
        ("settings.note", "1", None, Effect.OTHER),
    ]


def test_equal_inputs_leave_nothing_to_list(tmp_path: Path) -> None:
    result = diff_of(tmp_path, run(), run())
    assert result.inputs.differences == ()
    assert (result.inputs.weights_equal, result.inputs.tokenizer_equal) == (True, True)
    assert (result.outcome, result.exit_status) == (Outcome.NONE_SEEN, 0)


def test_other_weights_are_other_inputs_even_where_all_tokens_are_equal(tmp_path: Path) -> None:
    result = diff_of(tmp_path, run(), run(weights_hash="others"))
    assert result.inputs.weights_equal is False
    assert (result.outcome, result.exit_status) == (Outcome.INPUTS, 2)


def test_another_prompt_stops_the_comparison_where_it_starts_to_differ(tmp_path: Path) -> None:
    result = diff_of(tmp_path, run((5, 6, 7)), run((5, 5, 6, 7)))
    (request,) = result.requests
    assert (request.prompt_difference, request.compared_tokens, request.kv_rows) == (1, 0, 0)
    assert request.divergence is None
    assert result.exit_status == 2


def test_a_prompt_that_goes_on_is_another_prompt(tmp_path: Path) -> None:
    (request,) = diff_of(tmp_path, run((5, 6)), run((5, 6, 9))).requests
    assert request.prompt_difference == 2


@pytest.mark.parametrize(
    ("path", "effect"),
    [
        ("settings.kernel_policy", Effect.NUMERICS),
        ("environment.versions.mlx", Effect.NUMERICS),
        ("settings.scheduler.token_budget", Effect.BATCHING),
        ("requests.x.sampling.temperature", Effect.RESULT),
        ("requests.model.stuff", Effect.RESULT),
        ("settings.colour", Effect.OTHER),
    ],
)
def test_an_effect_is_judged_by_the_innermost_telling_word(path: str, effect: Effect) -> None:
    assert effect_of(path) is effect
