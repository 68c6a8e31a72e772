"""The arithmetic behind the benchmarks' tables."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.bench.meter import StepRecord
from engine.bench.report import Report, Table, environment_line, show
from engine.bench.slots import LENGTHS, SlotUse, expected_static_use, measured_use, scaled
from engine.bench.static_continuous import queued
from engine.bench.statistics import interleave, percentile, spread
from engine.bench.tuned_paths import describe, without_numba
from engine.bench.waiting import WaitReason, mean_use_of_blocks, verdict, wait_reason, waiting_shares
from engine.settings import AdmissionPolicy, EngineSettings
from engine.tune import PathRange, ShapeTimings


def step(running: int = 2, waiting: int = 1, rows: int = 4, preempted: int = 0, used: int = 3) -> StepRecord:
    return StepRecord(
        elapsed_s=0.1,
        packed_rows=rows,
        head_rows=1,
        prefill_rows=0,
        segments=2,
        committed_tokens=1,
        running=running,
        waiting=waiting,
        blocks_used=used,
        blocks_total=12,
        preempted=preempted,
    )


def test_the_usual_example_wastes_4675_of_6400_slot_steps() -> None:
    use = expected_static_use(LENGTHS, slots=8)
    assert (use.slot_steps, use.useful, use.wasted) == (6400, 1725, 4675)
    assert round(100 * use.wasted_share) == 73


def test_each_group_lasts_as_long_as_its_longest() -> None:
    assert expected_static_use([1, 9, 2, 3, 5], slots=2) == SlotUse(2 * 9 + 2 * 3 + 2 * 5, 20)


def test_measured_use_counts_what_steps_committed() -> None:
    assert measured_use([2, 2, 1], slots=2) == SlotUse(6, 5)
    assert measured_use([], slots=2).wasted_share == 0.0


def test_scaling_rounds_up_and_never_to_nothing() -> None:
    assert scaled(LENGTHS, 20) == (1, 2, 2, 2, 3, 3, 35, 40)
    assert scaled(LENGTHS, 1) == LENGTHS
    assert min(scaled(LENGTHS, 10_000)) == 1


def test_queued_groups_hold_the_same_lengths_in_another_order() -> None:
    groups = queued(LENGTHS, 3)
    assert [sorted(groups[g * 8 : g * 8 + 8]) for g in range(3)] == [sorted(LENGTHS)] * 3
    assert len({groups[g * 8] for g in range(3)}) == 3


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.floats(0.5, 100.0))
def test_a_percentile_is_the_smallest_value_that_covers_its_share(values: list[float], percent: float) -> None:
    found = percentile(values, percent)
    assert sum(value <= found for value in values) >= percent / 100 * len(values) - 1e-9
    assert sum(value < found for value in values) < percent / 100 * len(values)


def test_percentiles_of_few_values_are_values() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0], 99) == 3.0
    assert percentile(list(range(1, 101)), 99) == 99
    with pytest.raises(ValueError, match="undefined"):
        percentile([], 50)


def test_spread_is_mean_and_sample_deviation() -> None:
    found = spread([1.0, 2.0, 3.0, 4.0])
    assert (found.mean, found.count) == (2.5, 4)
    assert math.isclose(found.deviation, math.sqrt(5 / 3))
    assert str(spread([2.0])) == "2"
    assert "±" in str(found)
    with pytest.raises(ValueError, match="nothing was measured"):
        spread([])


def test_arms_run_in_turn_within_each_round() -> None:
    order: list[str] = []
    results = interleave({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, rounds=3)
    assert order == ["a", "b"] * 3
    assert {name: len(found) for name, found in results.items()} == {"a": 3, "b": 3}


LIMITS = EngineSettings(max_active=4, token_budget=16)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (step(waiting=0), WaitReason.NONE),
        (step(running=4), WaitReason.SLOTS),
        (step(running=4, rows=16), WaitReason.SLOTS),
        (step(running=3, rows=16), WaitReason.ROWS),
        (step(running=3, rows=15), WaitReason.BLOCKS),
        (step(running=3, rows=16, preempted=1), WaitReason.BLOCKS),
    ],
)
def test_the_first_limit_that_was_reached_is_what_a_request_waited_for(
    record: StepRecord, expected: WaitReason
) -> None:
    assert wait_reason(record, LIMITS) is expected


def test_a_closed_group_is_no_lack_of_blocks() -> None:
    static = LIMITS.model_copy(update={"admission": AdmissionPolicy.STATIC})
    assert wait_reason(step(running=1, rows=1), static) is WaitReason.GROUP


def test_shares_of_waiting_are_weighted_by_who_waits() -> None:
    steps = [step(running=4, waiting=3), step(running=3, rows=2, waiting=1), step(waiting=0)]
    shares = waiting_shares(steps, LIMITS)
    assert shares[WaitReason.SLOTS] == 0.75
    assert shares[WaitReason.BLOCKS] == 0.25
    assert verdict(shares) == "slots (75 %)"
    assert verdict(waiting_shares([step(waiting=0)], LIMITS)) == "nobody waited"
    assert mean_use_of_blocks(steps) == 0.25
    assert mean_use_of_blocks([]) == 0.0


def test_a_table_is_markdown_and_json() -> None:
    table = Table("T", ("arm", "x"), (("a", 1.23456), ("b", 2)), notes=("Note.",))
    assert table.markdown().splitlines()[2:6] == ["| arm | x |", "| --- | --- |", "| a | 1.235 |", "| b | 2 |"]
    report = Report("name", "python -m engine.bench name", (table,), "a machine")
    assert "`python -m engine.bench name`" in report.markdown()
    assert json.loads(json.dumps(report.as_json()))["tables"][0]["rows"] == [["a", 1.23456], ["b", 2]]
    assert (show(3), show("x"), show(0.00012346)) == ("3", "x", "0.0001235")


def test_the_environment_line_names_versions_and_blas() -> None:
    line = environment_line()
    assert "mlx " in line
    assert "numpy " in line
    assert "\n" not in line


def test_ranges_of_rows_are_told_in_words() -> None:
    assert describe((PathRange(None, "gemv"),)) == "gemv"
    told = describe((PathRange(4, "gemv"), PathRange(8, "invariant"), PathRange(None, "gemm-f32")))
    assert told == "gemv up to 4 rows, invariant up to 8 rows, then gemm-f32"


def test_a_machine_without_numba_is_offered_other_paths() -> None:
    timed = ShapeTimings("s", 1, {1: {"gemv": 2.0, "invariant": 1.0}, 2: {"gemv": 3.0, "invariant": 1.0}})
    assert without_numba(timed) == {1: {"gemv": 2.0}, 2: {"gemv": 3.0}}
