"""Candidates that share a step of either run are tried together; all others apart; none is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from divtrace.origin.records import Candidate, CandidateSite
from divtrace.proof.units import units_of

SITE = (CandidateSite("lm_head", "gemv", "gemm"),)


def pairs(*steps: tuple[int, int]) -> list[Candidate]:
    return [Candidate(a, b, SITE, False) for a, b in steps]


def test_a_prefill_against_its_chunks_is_one_change() -> None:
    assert units_of(pairs((11, 0), (12, 0), (13, 0), (20, 7))) == ((0, 1, 2), (3,))


def test_shifted_chunks_hang_together_as_a_chain() -> None:
    assert units_of(pairs((0, 0), (1, 0), (1, 1), (2, 1), (9, 5))) == ((0, 1, 2, 3), (4,))


def test_a_late_pair_can_join_two_units() -> None:
    assert units_of(pairs((0, 0), (1, 1), (0, 1), (5, 5))) == ((0, 1, 2), (3,))


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=14, unique=True))
def test_units_are_the_connected_parts(steps: list[tuple[int, int]]) -> None:
    units = units_of(pairs(*steps))
    assert sorted(index for unit in units for index in unit) == list(range(len(steps)))
    home = {index: number for number, unit in enumerate(units) for index in unit}
    for i, left in enumerate(steps):
        for j, right in enumerate(steps):
            if left[0] == right[0] or left[1] == right[1]:
                assert home[i] == home[j]
    for unit in units:
        reached, front = {unit[0]}, [unit[0]]
        while front:
            at = steps[front.pop()]
            linked = [k for k in unit if k not in reached and (steps[k][0] == at[0] or steps[k][1] == at[1])]
            reached |= set(linked)
            front += linked
        assert reached == set(unit)
