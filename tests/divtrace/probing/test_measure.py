from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from divtrace.probing.cases import Case
from divtrace.probing.measure import measure, ulps_of_row
from divtrace.probing.result import Findings
from divtrace.probing.tiles import propose_for_all, propose_tile
from tests.divtrace.probing.planted import (
    WIDTH,
    case_of,
    forgetful,
    honest,
    last_row_apart,
    nudged_at,
    scaled_by_company,
)

COUNTS = tuple(range(1, 9))


def found_in(case: Case, counts: tuple[int, ...] = COUNTS) -> Findings:
    rows = np.random.default_rng(0).uniform(0.5, 2.0, (16, WIDTH)).astype(np.float32)
    with np.errstate(all="ignore"):
        return measure(case, rows, counts, share_s=60.0)


def test_an_honest_kernel_is_found_invariant() -> None:
    found = found_in(case_of(honest, run_on_one_thread=honest))
    assert found.is_row_invariant
    assert found.classes == (COUNTS,)
    assert found.thread_dependent == ()


def test_holes_in_a_dispatch_table_are_all_listed() -> None:
    found = found_in(case_of(nudged_at(3, 5, 6)))
    assert found.changed == (3, 5, 6)
    assert found.index_dependent == ()
    assert found.classes == ((1, 2, 4, 7, 8), (3, 5, 6))
    assert 0 < found.most_ulps < 32


def test_a_remainder_row_shows_as_index_dependence() -> None:
    found = found_in(case_of(last_row_apart))
    assert found.index_dependent == (3, 4, 5, 6, 7, 8)
    assert found.distinct_results == 2
    assert found.classes == (COUNTS,)
    assert propose_tile(found).candidates == (2,)


def test_the_proposal_for_all_shapes_holds_for_each_and_is_the_fastest_a_row() -> None:
    anything, two_only = found_in(case_of(honest)), found_in(case_of(last_row_apart))
    assert propose_for_all([anything, two_only]) == 2
    timed = [replace(anything, time_s={count: 1.0 if count == 5 else 9.0 * count for count in COUNTS})] * 2
    assert propose_for_all(timed) == 5
    assert propose_for_all([anything, replace(anything, index_dependent=COUNTS)]) is None
    assert propose_for_all([]) is None


def test_a_scale_taken_from_the_whole_batch_shows_as_neighbour_dependence() -> None:
    found = found_in(case_of(scaled_by_company))
    assert found.neighbour_dependent
    assert 1 not in found.neighbour_dependent


def test_padding_that_moves_rows_is_seen() -> None:
    assert found_in(case_of(nudged_at(8)), (1, 2, 8)).padding_dependent == (1, 2)


def test_a_call_that_does_not_repeat_itself_is_seen() -> None:
    assert found_in(case_of(forgetful())).unrepeatable == (4,)


def test_dependence_on_threads_is_seen() -> None:
    found = found_in(case_of(honest, run_on_one_thread=nudged_at(2, 7), threads=2))
    assert found.thread_dependent == (2, 7)
    assert not found.is_row_invariant


def test_rows_whose_place_is_an_input_are_compared_with_their_own_place() -> None:
    def by_place(rows: np.ndarray) -> np.ndarray:
        return rows + np.arange(len(rows), dtype=np.float32)[:, None]

    found = found_in(case_of(by_place, alone=lambda rows, index: rows[index] + np.float32(index), rows_are_alike=False))
    assert found.changed == ()
    assert found.index_dependent == ()
    assert found.classes == (COUNTS,)


def test_row_counts_beyond_the_share_of_time_are_named() -> None:
    rows = np.ones((16, WIDTH), np.float32)
    found = measure(case_of(honest), rows, COUNTS, share_s=1e-9)
    assert found.row_counts == (1,)
    assert found.skipped == COUNTS[1:]


@pytest.mark.parametrize(("dtype", "mantissa_bits"), [("float32", 23), ("float16", 10), ("bfloat16", 7)])
def test_one_ulp_of_the_largest_value_counts_as_one(dtype: str, mantissa_bits: int) -> None:
    row = np.array([0.001, -1.5])
    assert ulps_of_row(2.0**-mantissa_bits, row, dtype) == 1.0
