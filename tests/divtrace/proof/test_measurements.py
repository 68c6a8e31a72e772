"""Drift past the decision, and recording on against off, on a real engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from divtrace.proof.past_flip import measure_past_flip
from divtrace.proof.recording_check import check_recording
from divtrace.proof.records import Direction
from engine.model.packed import PackedModel
from tests.divtrace.proof.pairs import Pair, flipping_pair, handoff, opened, record


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return flipping_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def pair(traces: tuple[Path, Path]) -> Iterator[Pair]:
    with opened(*traces) as found:
        yield found


def test_drift_goes_on_behind_the_flip_and_is_gone_without_its_cause(pair: Pair) -> None:
    counterfactuals = pair.counterfactuals()
    counterfactuals.require_rows("A", "B")
    bases = counterfactuals.bases
    restoring = counterfactuals.overrides_of(Direction.RESTORE, (0,))
    measured = measure_past_flip(bases["A"], bases["B"], 5, restoring)
    flip = pair.origins.position
    assert [at.position for at in measured.positions] == list(range(flip, flip + 6))
    assert measured.positions[0].same_choice is False
    assert all(at.largest > 0 for at in measured.positions)
    assert measured.largest == max(at.largest for at in measured.positions)
    assert [at.position for at in measured.restored] == [at.position for at in measured.positions]
    assert all(at.largest == 0.0 and at.same_choice for at in measured.restored)


def test_measuring_ends_with_run_as_tokens(pair: Pair) -> None:
    counterfactuals = pair.counterfactuals()
    counterfactuals.require_rows("A", "B")
    bases = counterfactuals.bases
    measured = measure_past_flip(bases["A"], bases["B"], 500)
    last = len(pair.a.run.requests[0].prompt) + pair.a.run.requests[0].max_tokens
    assert measured.positions[-1].position <= last
    assert measured.restored == ()


def test_speculation_does_not_stand_in_the_way_of_measuring(tmp_path: Path) -> None:
    settings = {"speculation": {"drafter": "self", "self_layers": 1, "tokens": 3}}
    a = record(tmp_path / "a.h5", handoff(63, 16), max_active=1, **settings)
    b = record(tmp_path / "b.h5", handoff(63, 16), max_active=2, **settings)
    with opened(a, b) as pair:
        counterfactuals = pair.counterfactuals()
        counterfactuals.require_rows("A", "B")
        measured = measure_past_flip(counterfactuals.bases["A"], counterfactuals.bases["B"], 4)
        assert measured.positions[0].position == pair.origins.position


def test_recording_changes_nothing_here(pair: Pair) -> None:
    checked = check_recording(pair.a, pair.origins.step_a)
    assert checked.first_step is None
    assert checked.with_logits
    assert checked.decisions >= pair.origins.output_index


def test_a_run_that_comes_out_otherwise_when_nobody_asks_for_rows_is_noticed(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for an extra evaluation that picks another kernel: without it one logit moves by one step."""
    forward = PackedModel._to_numpy

    def heisenbug(self, logits, kept, tensors):  # type: ignore[no-untyped-def]
        moved = logits if kept is not None else logits * mx.array(1.0 + 2.0**-23)
        return forward(self, moved, kept, tensors)

    monkeypatch.setattr(PackedModel, "_to_numpy", heisenbug)
    assert check_recording(pair.a, pair.origins.step_a).first_step == 0
