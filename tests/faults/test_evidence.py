"""The evidence that verdicts stand on: what the audit records, what a playback follows, what one run shows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from divtrace.align.index import TraceIndex
from divtrace.origin.choices import choice_faults
from divtrace.origin.find import find_origins
from divtrace.recorder.step_flags import StepFlag
from divtrace.replay.replay import Replayer
from divtrace.replay.verify import compare_replay
from divtrace.trace.reader import Trace, open_trace
from engine.request import SamplingParams
from tests.faults.case import Arm, plant, record
from tests.faults.cases_paths import GEMV, SPECULATION, settings
from tests.faults.corpus import corpus
from tests.faults.kernels import COARSE, fault_kernels
from tests.faults.memory import ChangedRow
from tests.faults.paths import PathSwitch
from tests.faults.workloads import VICTIM, model, neighbour, victim


def arm(sampling: SamplingParams | None = None) -> Arm:
    """Two requests under forced GEMV."""
    return Arm(model("llama-2"), GEMV, (victim(0, tokens=20, sampling=sampling), neighbour(0)))


def test_the_audit_names_a_changed_row_once_where_it_lies(tmp_path: Path) -> None:
    damaged = replace(arm(), audit_every=1, fault=lambda: ChangedRow(VICTIM, 26, 8, 1, 2.0))
    ran = record(damaged, tmp_path / "run.h5")
    with open_trace(tmp_path / "run.h5") as trace:
        columns = [trace.column("audits", name).tolist() for name in ("request", "position", "layer", "step")]
        assert [column[0] for column in columns] == [0, 8, 1, ran.fault.struck[0].step]
        assert trace.length("audits") == 1
        assert trace.column("audits", "expected_hash")[0] != trace.column("audits", "found_hash")[0]
        flagged = (trace.column("steps", "flags") & StepFlag.AUDIT_FAILED).nonzero()[0].tolist()
        assert flagged == [ran.fault.struck[0].step]


@pytest.mark.parametrize("every", [0, 1, 4])
def test_a_sound_run_passes_its_audit_and_the_audit_changes_no_bit(tmp_path: Path, every: int) -> None:
    plain = replace(arm(), settings=settings(prefix_cache=True, speculation=SPECULATION))
    record(plain, tmp_path / "plain.h5")
    record(replace(plain, audit_every=every), tmp_path / "audited.h5")
    with open_trace(tmp_path / "plain.h5") as a, open_trace(tmp_path / "audited.h5") as b:
        assert b.length("audits") == 0
        assert a.column("rows", "digest").tolist() == b.column("rows", "digest").tolist()


def test_a_playback_follows_the_plan_that_was_recorded_not_the_settings(tmp_path: Path) -> None:
    switched = replace(arm(), fault=lambda: PathSwitch(VICTIM, 24, "model.layers.0.*proj", COARSE))
    with fault_kernels():
        record(switched, tmp_path / "run.h5")
        with open_trace(tmp_path / "run.h5") as trace:
            replayer = Replayer(trace, switched.loaded)
            assert {override.path for override in replayer.run.overrides} == {COARSE}
            replayer.play(tmp_path / "again.h5")
            with open_trace(tmp_path / "again.h5") as again:
                assert compare_replay(trace, again).is_equal


def faults_of(trace: Trace, other: Trace) -> tuple[str, ...]:
    """What the flipped decision of `trace` shows without looking at `other`."""
    found = find_origins(other, trace, VICTIM)
    return tuple(fault.reason for fault in found.choice_faults if fault.run == "B")


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("penalties one token late", "after penalties, which make"),
        ("draws at temperature 0", "a random number was drawn although the temperature is 0"),
        ("draft accepted unverified", "was committed with logit"),
        ("last-wins ties", "tie exactly and the higher id was committed"),
    ],
)
def test_one_run_alone_shows_a_wrong_choice(tmp_path: Path, kind: str, words: str) -> None:
    pair = plant(next(case for case in corpus(smollm2=False) if case.kind == kind), tmp_path)
    with open_trace(pair.path_a) as a, open_trace(pair.path_b) as b:
        assert any(words in reason for reason in faults_of(b, a))
        assert not faults_of(a, b)


def test_sound_decisions_show_nothing(tmp_path: Path) -> None:
    for number, sampling in enumerate((None, SamplingParams(temperature=0.9, repetition_penalty=1.2, seed=4))):
        path = tmp_path / f"{number}.h5"
        record(arm(sampling), path)
        with open_trace(path) as trace:
            index = TraceIndex(trace)
            decided = index.decisions(0)
            for position, at in zip(decided.positions.tolist(), decided.records.tolist(), strict=True):
                assert choice_faults(index, 0, position, at) == ()
