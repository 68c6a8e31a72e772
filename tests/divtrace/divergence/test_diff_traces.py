"""First differences, whether drift explains a flip, and how much was compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.logits import ulps_between
from divtrace.divergence.records import DiffResult, Outcome
from divtrace.errors import DivtraceError
from divtrace.origin.find import find_origins
from divtrace.recorder.recorder import Recorder
from divtrace.render.diff import render_diff
from divtrace.render.text import plain
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.observer import RunEnding
from engine.request import FinishReason, SamplingParams
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment

PROMPT = (5, 6, 7)


def run(
    chosen: tuple[int, ...] = (9, 10, 11),
    sampling: SamplingParams | None = None,
    draws: float | None = None,
    reason: FinishReason | None = FinishReason.LENGTH,
) -> TraceBuilder:
    """A request decoded alone; token n of the output is `chosen[n]`."""
    builder = TraceBuilder()
    builder.request("r", PROMPT, len(chosen), sampling)
    builder.step(segment("r", SegmentKind.PREFILL, 0, PROMPT, chosen=chosen[:1]), random_numbers=[draws])
    for index, token in enumerate(chosen[1:]):
        decode = segment("r", SegmentKind.DECODE, 3 + index, chosen[index : index + 1], chosen=(token,))
        builder.step(decode, random_numbers=[draws])
    if reason is not None:
        builder.finish("r", reason)
    return builder


def logits_row(values: dict[int, float]) -> np.ndarray:
    row = np.full(32, -5.0, np.float32)
    for token, value in values.items():
        row[token] = value
    return row


def diff_of(folder: Path, a: TraceBuilder, b: TraceBuilder, level: Level = Level.KV) -> DiffResult:
    paths = a.write(folder / "a.h5", level), b.write(folder / "b.h5", level)
    with open_trace(paths[0]) as left, open_trace(paths[1]) as right:
        return diff_traces(left, right)


def article_pair() -> tuple[TraceBuilder, TraceBuilder]:
    """The published logits of the anchor's flip, at output token 2."""
    a, b = run((9, 10, 14)), run((9, 10, 23))
    a.logits[("r", 5)] = logits_row({14: 25.571232, 23: 25.565775})
    b.logits[("r", 5)] = logits_row({14: 25.549618, 23: 25.562220})
    return a, b


def test_a_flip_that_drift_explains_has_both_margins_and_their_sum(tmp_path: Path) -> None:
    (request,) = diff_of(tmp_path, *article_pair()).requests
    found = request.divergence
    assert found is not None
    assert (found.position, found.output_index, found.step_a, found.step_b) == (5, 2, 2, 2)
    assert (found.token_a.text, found.token_b.text) == ("<14>", "<23>")
    assert found.flip.explained is True
    assert found.flip.margin_a == pytest.approx(0.005457, abs=2e-6)
    assert found.flip.margin_b == pytest.approx(0.012602, abs=2e-6)
    assert found.flip.differential_drift == found.flip.margin_a + found.flip.margin_b
    assert [(d.drift < 0, d.ulps) for d in found.drifts if d.drift is not None] == [(True, 11332), (True, 1864)]


def test_equal_logits_and_another_token_are_not_explained_by_drift(tmp_path: Path) -> None:
    a, b = run((9, 10)), run((9, 12))
    for builder in (a, b):
        builder.logits[("r", 4)] = logits_row({10: 3.0, 12: 3.0})
    found = diff_of(tmp_path, a, b).requests[0].divergence
    assert found is not None
    assert found.flip.explained is False
    assert "did not move" in found.flip.reason


def test_a_token_against_its_logits_is_not_explained_by_drift(tmp_path: Path) -> None:
    a, b = run((9, 10)), run((9, 12))
    a.logits[("r", 4)] = logits_row({10: 3.0, 12: 2.0})
    b.logits[("r", 4)] = logits_row({10: 3.0, 12: 2.5})
    found = diff_of(tmp_path, a, b).requests[0].divergence
    assert found is not None
    assert found.flip.explained is False
    assert "run B" in found.flip.reason


def test_random_draws_and_missing_or_broken_logits_leave_the_flip_open(tmp_path: Path) -> None:
    warm = SamplingParams(temperature=1.0)
    cases = {
        "drawn at random": (run((9, 10), warm, 0.25), run((9, 12), warm, 0.25)),
        "not finite": (run((9, 10)), run((9, 12))),
    }
    cases["not finite"][0].logits[("r", 4)] = logits_row({10: np.nan, 12: 1.0})
    cases["not finite"][1].logits[("r", 4)] = logits_row({10: 0.5, 12: 1.0})
    cases["drawn at random"][0].logits[("r", 4)] = logits_row({10: 3.0, 12: 2.5})
    cases["drawn at random"][1].logits[("r", 4)] = logits_row({10: 3.0, 12: 2.5})
    for number, (words, pair) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = diff_of(folder, *pair).requests[0].divergence
        assert found is not None
        assert found.flip.explained is None
        assert words in found.flip.reason
    folder = tmp_path / "tokens"
    folder.mkdir()
    found = diff_of(folder, *article_pair(), level=Level.TOKENS).requests[0].divergence
    assert found is not None
    assert found.flip.explained is None
    assert (found.top_a, found.gap_a) == ((), None)


def test_a_token_outside_the_recorded_top_has_no_drift(tmp_path: Path) -> None:
    a, b = run((9, 10)), run((9, 12))
    a.logits[("r", 4)] = logits_row({10: 5.0, 1: 4.0, 2: 3.0, 3: 2.0, 12: 1.0})
    b.logits[("r", 4)] = logits_row({12: 5.0, 1: 4.0, 2: 3.0, 3: 2.0, 10: 1.0})
    found = diff_of(tmp_path, a, b).requests[0].divergence
    assert found is not None
    assert [(d.a is None, d.b is None, d.drift) for d in found.drifts] == [(False, True, None), (True, False, None)]
    assert found.flip.explained is None


def test_state_that_differs_under_equal_tokens_is_found_with_its_first_row(tmp_path: Path) -> None:
    a, b = run(), run()
    b.content[("r", 1, 1)] = 77
    b.content[("r", 4)] = 78
    result = diff_of(tmp_path, a, b)
    (request,) = result.requests
    assert (result.outcome, result.exit_status) == (Outcome.STATE, 1)
    row = request.first_row_difference
    assert row is not None
    assert (row.position, row.layer, row.tensor, row.step_a, row.step_b) == (1, 1, "both", 0, 0)
    assert (request.differing_kv_rows, request.kv_rows) == (2, 5)


def test_the_first_logits_that_differ_come_before_the_token_that_does(tmp_path: Path) -> None:
    a, b = article_pair()
    a.logits[("r", 4)] = logits_row({10: 5.0, 12: 4.0})
    b.logits[("r", 4)] = logits_row({10: 5.0, 12: 4.0078125})
    (request,) = diff_of(tmp_path, a, b).requests
    assert request.first_logits_difference is not None
    assert request.first_logits_difference.position == 4
    assert request.divergence is not None
    assert request.divergence.flip.largest_drift_before == 0.0078125
    assert request.divergence.flip.median_drift_before == 0.0


def test_how_much_was_compared_is_counted_and_nothing_more_is_claimed(tmp_path: Path) -> None:
    result = diff_of(tmp_path, example_run(), example_run())
    assert (result.compared.requests, result.compared.tokens) == (2, 6)
    assert (result.compared.decisions_with_logits, result.compared.layers) == (6, 2)
    anchor = next(r for r in result.requests if r.id_a == "anchor")
    assert (anchor.drafts_a.proposed_tokens, anchor.drafts_a.accepted_tokens) == (2, 1)
    assert anchor.drafts_a.acceptance == 0.5


def test_a_run_that_ended_early_is_compared_as_far_as_it_goes_and_said(tmp_path: Path) -> None:
    whole, cut = run((9, 10, 11)), run((9, 10), reason=None)
    whole_path = whole.write(tmp_path / "a.h5")
    recorder = Recorder(tmp_path / "b.h5", Level.KV, 4, flush_steps=1)
    cut.replay(recorder, end=False)
    recorder._open_writer().abandon()
    with open_trace(whole_path) as a, open_trace(tmp_path / "b.h5") as b:
        result = diff_traces(a, b)
    (request,) = result.requests
    assert (result.run_a.clean_end, result.run_b.clean_end) == (True, False)
    assert (result.run_a.unfinished, result.run_b.unfinished) == ("", "ended early at step 2")
    assert (request.ending_b.reason, request.ending_b.step) == ("unfinished", None)
    assert (request.compared_tokens, result.exit_status) == (2, 0)


def test_rows_hashed_in_two_ways_are_not_compared_and_the_answer_says_so_in_one_sentence(tmp_path: Path) -> None:
    paths = [run().write(tmp_path / f"{name}.h5", hash_name=name) for name in ("xxh3_64", "multilinear_64")]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = diff_traces(a, b)
        missing = find_origins(a, b, request="r").missing
    assert (result.outcome, result.compared.tokens, result.compared.decisions_with_logits) == (Outcome.NONE_SEEN, 3, 3)
    assert (result.compared.kv_rows, result.hashes_differ) == (0, True)
    said = plain(render_diff(result))
    assert said.count("record both with DIVTRACE_HASH=xxh3_64.") == 1
    assert "A is hashed with xxh3_64 and B with multilinear_64" in " ".join(said.split())
    assert missing == (
        "KV rows of run A are hashed with xxh3_64, of run B with multilinear_64; record both with "
        "DIVTRACE_HASH=xxh3_64",
    )


def test_rows_hashed_in_the_same_way_are_compared_whatever_the_way(tmp_path: Path) -> None:
    other = run()
    other.content[("r", 3)] = 7
    paths = [
        built.write(tmp_path / f"{name}.h5", hash_name="multilinear_64") for name, built in (("a", run()), ("b", other))
    ]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = diff_traces(a, b)
    row = result.requests[0].first_row_difference
    assert row is not None
    assert (row.position, row.layer, result.hashes_differ) == (3, 0, False)
    assert result.requests[0].differing_kv_rows == 1


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        (RunEnding(interrupted=True), "interrupted at step 2: later steps are missing"),
        (RunEnding(failure="[red]x[/] broke."), "failed at step 2: [red]x[/] broke: later steps are missing"),
    ],
)
def test_a_run_that_did_not_come_to_its_end_is_named_with_its_reason(
    tmp_path: Path, ending: RunEnding, words: str
) -> None:
    cut = run((9, 10), reason=None)
    cut.replay(Recorder(tmp_path / "b.h5", Level.KV, 4), ending)
    with open_trace(run((9, 10)).write(tmp_path / "a.h5")) as a, open_trace(tmp_path / "b.h5") as b:
        said = " ".join(plain(render_diff(diff_traces(a, b))).split())
    assert words in said
    assert said.count("later steps are missing") == 1


def test_a_run_that_stopped_by_itself_and_one_that_went_on_are_different(tmp_path: Path) -> None:
    stopped = run((9, 10), reason=FinishReason.STOP)
    result = diff_of(tmp_path, stopped, run((9, 10, 11)))
    assert result.requests[0].ended_apart
    assert (result.outcome, result.exit_status) == (Outcome.TOKENS, 1)


def test_near_ties_are_counted_by_gap(tmp_path: Path) -> None:
    a = run((9, 10, 11))
    a.runner_up[("r", 3)] = (1, 0.0)
    a.runner_up[("r", 4)] = (1, 0.005)
    counts = {gap_bin.limit: gap_bin.decisions for gap_bin in diff_of(tmp_path, a, run()).gaps}
    assert (counts[0.0], counts[0.001], counts[0.01], counts[0.1], counts[1.0]) == (1, 0, 1, 0, 0)
    assert counts[None] == 1


def test_one_request_can_be_asked_for_and_an_unknown_one_is_refused(tmp_path: Path) -> None:
    path = example_run().write(tmp_path / "a.h5")
    with open_trace(path) as a, open_trace(path) as b:
        assert [r.id_a for r in diff_traces(a, b, "follower").requests] == ["follower"]
        with pytest.raises(DivtraceError, match="no request 'x'"):
            diff_traces(a, b, "x")


@pytest.mark.parametrize(("a", "b", "ulps"), [(1.0, 1.0, 0), (1.0, 1.0000001, 1), (-0.0, 0.0, 0), (-1e-45, 1e-45, 2)])
def test_ulps_count_float32_numbers_across_zero(a: float, b: float, ulps: int) -> None:
    assert ulps_between(a, b) == ulps
    assert ulps_between(float("inf"), b) is None
