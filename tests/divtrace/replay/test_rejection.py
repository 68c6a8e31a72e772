"""Choices by rejection sampling are no part of a playback's promise; logits and K/V rows are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from divtrace.proof.prove import prove
from divtrace.proof.recording_check import check_recording
from divtrace.proof.records import Causality, Outcome
from divtrace.replay.choices import repeatable_choices
from divtrace.replay.replay import Replayer
from divtrace.replay.verify import compare_replay
from divtrace.trace.reader import open_trace
from engine.request import Request, SamplingParams
from tests.divtrace.proof.pairs import handoff, model, opened, record

SPECULATION = {"drafter": "self", "self_layers": 1, "tokens": 3, "acceptance": "rejection"}


def sampled_requests(tokens: int) -> list[Request]:
    return [replace(r, sampling=SamplingParams(temperature=0.9, seed=5)) for r in handoff(0, tokens)]


def test_logits_and_rows_are_compared_and_such_choices_are_not(tmp_path: Path) -> None:
    path = record(tmp_path / "run.h5", sampled_requests(20), speculation=SPECULATION)
    with open_trace(path) as trace:
        repeatable = repeatable_choices(trace)
        assert 0 < np.count_nonzero(repeatable) < repeatable.size
        player = Replayer(trace, model())
        player.play(tmp_path / "again.h5")
        with open_trace(tmp_path / "again.h5") as again:
            assert compare_replay(trace, again).is_equal
            chosen = trace.column("sampled", "chosen"), again.column("sampled", "chosen")
            assert (chosen[0] != chosen[1]).any()
            assert not (chosen[0] != chosen[1])[repeatable].any()
        assert check_recording(player).first_step is None


def test_by_equality_every_choice_is_compared(tmp_path: Path) -> None:
    path = record(tmp_path / "run.h5", sampled_requests(8), speculation=SPECULATION | {"acceptance": "equality"})
    with open_trace(path) as trace:
        assert repeatable_choices(trace).all()


def test_a_decision_by_rejection_is_proven_by_its_logits(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", sampled_requests(16), max_active=1, speculation=SPECULATION)
    b = record(tmp_path / "b.h5", sampled_requests(16), max_active=2, speculation=SPECULATION)
    with opened(a, b) as pair:
        counterfactuals = pair.counterfactuals()
        found = prove(counterfactuals)
        assert counterfactuals.outcome is Outcome.LOGITS
        assert found.causality is not Causality.UNTESTED
        assert all(trial.outcome is Outcome.LOGITS for trial in found.trials)
