"""Delta debugging finds what cannot be made smaller, and finds one cause among many quickly."""

from __future__ import annotations

import math
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from divtrace.proof.minimize import Indices, minimize

SIZES = st.integers(1, 40)


def counted(test: Callable[[Indices], bool]) -> tuple[Callable[[Indices], bool], list[Indices]]:
    """The test with a cache, as trials have one, and the sets that were really asked."""
    known: dict[Indices, bool] = {}

    def ask(chosen: Indices) -> bool:
        if chosen not in known:
            known[chosen] = test(chosen)
        return known[chosen]

    return ask, known  # type: ignore[return-value]


@given(SIZES, st.data())
def test_the_cause_is_found_whatever_it_is(size: int, data: st.DataObject) -> None:
    cause = data.draw(st.sets(st.integers(0, size - 1), min_size=1))
    assert minimize(range(size), lambda chosen: cause <= set(chosen)) == tuple(sorted(cause))


@given(SIZES, st.data())
def test_nothing_can_be_taken_out_of_what_is_found_even_where_effects_interact(size: int, data: st.DataObject) -> None:
    everything = tuple(range(size))
    odd_ones = data.draw(st.sets(st.integers(0, 2**16), max_size=60))

    def test(chosen: Indices) -> bool:
        return chosen == everything or hash((chosen, "salt")) % 2**16 in odd_ones or sum(chosen) % 7 == 3

    found = minimize(everything, test)
    assert test(found)
    if len(found) > 1:
        assert not any(test(tuple(i for i in found if i != left_out)) for left_out in found)


@given(st.integers(2, 512), st.data())
def test_one_cause_takes_a_number_of_tests_that_grows_with_the_logarithm(size: int, data: st.DataObject) -> None:
    cause = data.draw(st.integers(0, size - 1))
    ask, asked = counted(lambda chosen: cause in chosen)
    assert minimize(range(size), ask) == (cause,)
    assert len(asked) <= 2 * math.ceil(math.log2(size))


@given(SIZES, st.data())
def test_only_parts_of_the_candidates_are_asked_for_and_in_order(size: int, data: st.DataObject) -> None:
    cause = data.draw(st.sets(st.integers(0, size - 1), min_size=1, max_size=3))
    ask, asked = counted(lambda chosen: cause <= set(chosen))
    minimize(range(size), ask)
    assert all(chosen == tuple(sorted(set(chosen))) and 0 < len(chosen) <= size for chosen in asked)
