"""Re-runs on a real engine: both tests agree, results are kept, and an interrupted proof goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from divtrace.proof.cache import fingerprint
from divtrace.proof.counterfactual import Counterfactuals, Progress
from divtrace.proof.prove import prove
from divtrace.proof.records import Causality, Direction, Method, ProofResult
from divtrace.trace.reader import open_trace
from divtrace.verdict.records import Confidence
from divtrace.verdict.verdict import judge
from engine.request import Request
from tests.divtrace.proof.pairs import Pair, flipping_pair, handoff, opened, prompt, record


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return flipping_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def pair(traces: tuple[Path, Path]) -> Iterator[Pair]:
    with opened(*traces) as found:
        yield found


class Interrupted(Exception):
    """Stands for Ctrl-C between two re-runs."""


def interrupt_after(replays: int) -> tuple[list[str], Progress]:
    told: list[str] = []

    def progress(what: str) -> None:
        if len(told) == replays:
            raise Interrupted
        told.append(what)

    return told, progress


def facts(result: ProofResult) -> object:
    """Everything but the time that it took."""
    return (
        result.causality,
        result.cause,
        result.sufficient,
        result.swap_agrees,
        [(t.direction, t.method, t.candidates, t.chosen_token, t.same_logits, t.margin) for t in result.trials],
    )


def test_a_flip_is_proven_by_paths_and_by_rows_both_ways(pair: Pair) -> None:
    found = prove(pair.counterfactuals())
    assert found.causality is Causality.ONE
    assert found.swap_agrees is True
    assert [(t.direction, t.method, t.flips) for t in found.trials] == [
        (Direction.RESTORE, Method.PATH, True),
        (Direction.INDUCE, Method.PATH, True),
        (Direction.RESTORE, Method.ROWS, True),
        (Direction.INDUCE, Method.ROWS, True),
    ]
    restored = found.trials[0]
    assert restored.same_logits is True
    assert restored.margin is not None
    assert restored.margin < 0 < (restored.margin_without or 0)


def test_swapped_rows_are_the_other_runs_so_the_logits_are_too(pair: Pair) -> None:
    """No kernel of the changed step is involved: what follows has the very bits of the other run."""
    counterfactuals = pair.counterfactuals()
    for direction in Direction:
        assert counterfactuals.trial(direction, (0,), Method.ROWS).same_logits is True


def test_a_trial_computes_only_the_steps_from_the_first_change_on(pair: Pair) -> None:
    counterfactuals = pair.counterfactuals()
    changed = pair.origins.candidates[0].step_b
    by_paths = counterfactuals.trial(Direction.RESTORE, (0,))
    assert by_paths.steps == pair.origins.step_b - changed + 1
    by_rows = counterfactuals.trial(Direction.RESTORE, (0,), Method.ROWS)
    assert by_rows.steps == pair.origins.step_b - changed


def test_a_proof_that_was_interrupted_goes_on_where_it_stopped(
    traces: tuple[Path, Path], pair: Pair, tmp_path: Path
) -> None:
    told, progress = interrupt_after(3)
    stopped = Counterfactuals(pair.a, pair.b, pair.origins, pair.origins.candidates, tmp_path, progress)
    with pytest.raises(Interrupted):
        prove(stopped)
    assert len(told) == 3

    more: list[str] = []
    with opened(*traces) as again:
        resumed = Counterfactuals(again.a, again.b, again.origins, again.origins.candidates, tmp_path, more.append)
        found = prove(resumed)
    assert not any(what.startswith("restore: run B with A's paths") for what in more)
    assert facts(found) == facts(prove(pair.counterfactuals()))


def test_a_finished_proof_asks_for_no_re_run(traces: tuple[Path, Path], pair: Pair, tmp_path: Path) -> None:
    first = prove(pair.counterfactuals(tmp_path))
    asked: list[str] = []
    with opened(*traces) as again:
        kept = Counterfactuals(again.a, again.b, again.origins, again.origins.candidates, tmp_path, asked.append)
        second = prove(kept)
    assert asked == []
    assert second == first


def test_results_of_other_traces_are_not_used(pair: Pair, tmp_path: Path) -> None:
    prove(pair.counterfactuals(tmp_path))
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    requests = handoff(63, 10)
    a = record(tmp_path / "a.h5", requests, max_active=1)
    b = record(tmp_path / "b.h5", requests, max_active=2)
    with opened(a, b) as other:
        assert other.counterfactuals(tmp_path).trials == ()
        assert other.counterfactuals(tmp_path).reruns == 0
        other.counterfactuals(tmp_path).control("A")
    assert all((tmp_path / name).read_bytes() == content for name, content in kept.items())


def test_a_cache_belongs_to_what_was_recorded_not_to_its_shape(pair: Pair, tmp_path: Path) -> None:
    """One prompt token apart, everything else alike: sizes, settings, machine."""
    names = []
    for token in (1, 2):
        requests = [replace(request, prompt=(token, *request.prompt[1:])) for request in handoff(0, 6)]
        with open_trace(record(tmp_path / f"{token}.h5", requests)) as trace:
            names.append(fingerprint((trace, trace), pair.origins, pair.origins.candidates))
            assert names[-1] == fingerprint((trace, trace), pair.origins, pair.origins.candidates)
            assert names[-1] != fingerprint((trace, trace), pair.origins, ())
    assert names[0] != names[1]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"[]",
        b"{",
        b'{"trials": {"restore:path:0": {}}}',
        b'{"trials": 5}',
        b'{"controls": {"A": null}}',
    ],
)
def test_results_that_cannot_be_read_are_ignored(pair: Pair, tmp_path: Path, content: bytes) -> None:
    pair.counterfactuals(tmp_path).control("A")
    (kept,) = tmp_path.glob("proof-*.json")
    assert json.loads(kept.read_bytes())["controls"]["A"]["is_equal"] is True
    kept.write_bytes(content)
    damaged = pair.counterfactuals(tmp_path)
    assert (damaged.trials, damaged.reruns) == ((), 0)


def test_state_that_differs_under_equal_tokens_is_proven_by_the_logits_bits(tmp_path: Path) -> None:
    requests = handoff(0, 10)
    a = record(tmp_path / "a.h5", requests, max_active=1)
    b = record(tmp_path / "b.h5", requests, max_active=2)
    with opened(a, b) as calm:
        assert not calm.origins.flipped
        found = prove(calm.counterfactuals())
        assert found.causality is Causality.ONE
        assert found.trials[0].same_logits is True
        judged = judge(calm.origins, found)
        assert judged.confidence is Confidence.PROVEN
        if not found.trials[1].flips:
            assert "its K/V rows, and nothing else of run B" in judged.reason
        assert found.trials[0].margin != found.trials[0].margin_without


def test_rows_that_another_request_computed_are_swapped_for_those_that_the_request_computed_itself(
    tmp_path: Path,
) -> None:
    """Run A computes the prompt in chunks by GEMV; run B takes most of it from another request's prefill by GEMM."""
    shared = prompt(40, 32)
    requests = [Request("first", (*shared, 7), 3, ignore_eos=True), Request("second", (*shared, 9), 8, ignore_eos=True)]
    a = record(tmp_path / "a.h5", requests, max_active=1, token_budget=4)
    b = record(tmp_path / "b.h5", requests, max_active=1, prefix_cache=True)
    with opened(a, b, request="second") as pair:
        assert pair.runs.b.trace.length("reused") == 32
        found = prove(pair.counterfactuals())
        assert found.causality is Causality.ONE
        assert len(found.cause) > 4
        assert found.swap_agrees is True
        restored = found.trials[0]
        assert (restored.direction, restored.same_logits) == (Direction.RESTORE, True)
