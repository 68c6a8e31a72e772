"""What is concluded from trials: one cause, either of several, only together, necessary, none; and by which tests."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from divtrace.origin.records import Candidate
from divtrace.proof.prove import prove
from divtrace.proof.records import Causality, Method, ProofResult, Subject
from tests.divtrace.proof.truth import Effect, Truth, candidate


def never(_on: frozenset[int]) -> bool:
    return False


def always(_on: frozenset[int]) -> bool:
    return True


def proven(truth: Truth, subject: Subject = Subject.PATHS) -> ProofResult:
    return prove(cast("Any", truth), subject)


def truth(count: int, effect: Effect, origins: set[int] | None = None, **more: Any) -> Truth:
    marked = set(range(count)) if origins is None else origins
    return Truth(tuple(candidate(step, step in marked) for step in range(count)), effect, **more)


def test_one_cause_restores_and_induces_and_decoys_are_cleared() -> None:
    found = proven(truth(5, lambda on: 3 in on))
    assert (found.causality, found.cause, found.sufficient) == (Causality.ONE, (3,), ((3,),))
    assert found.swap_agrees is True


def test_the_usual_case_takes_six_playbacks() -> None:
    found = proven(truth(1, lambda on: 0 in on))
    assert (found.causality, found.reruns) == (Causality.ONE, 6)


def test_either_of_two_suffices_and_both_must_go() -> None:
    found = proven(truth(3, lambda on: 0 in on or 2 in on))
    assert (found.causality, found.cause, found.sufficient) == (Causality.EITHER, (0, 2), ((0,), (2,)))


def test_two_that_act_only_together_are_a_joint_cause() -> None:
    found = proven(truth(3, lambda on: {0, 1} <= on))
    assert (found.causality, found.cause, found.sufficient) == (Causality.JOINT, (0,), ((0, 1),))


def test_what_must_go_and_is_not_enough_by_itself_is_called_necessary() -> None:
    """Run B holds something else that acts with it, and that no candidate stands for."""
    found = proven(truth(2, never, effect_in_b=lambda on: 1 in on))
    assert (found.causality, found.cause, found.sufficient) == (Causality.NECESSARY, (1,), ())


def test_candidates_that_change_nothing_are_no_cause() -> None:
    found = proven(truth(4, never, effect_in_b=always))
    assert (found.causality, found.cause, found.sufficient) == (Causality.NONE, (), ())
    assert "does not change the outcome" in found.note
    assert found.swap_agrees is None


@pytest.mark.parametrize("run", ["A", "B"])
def test_a_run_that_does_not_repeat_itself_ends_the_proof_before_any_trial(run: str) -> None:
    unsteady = truth(3, lambda on: 1 in on, failing_run=run)
    found = proven(unsteady)
    assert found.causality is Causality.UNTESTED
    assert found.trials == ()
    assert run in found.note
    assert unsteady.controls == (["A"] if run == "A" else ["A", "B"])


def test_without_candidates_nothing_is_tried() -> None:
    assert proven(truth(0, always)).causality is Causality.UNTESTED


def test_a_swap_that_comes_out_otherwise_is_reported() -> None:
    found = proven(truth(3, lambda on: 1 in on, swapped_effect=never))
    assert found.causality is Causality.ONE
    assert found.swap_agrees is False


def test_rows_of_the_deciding_step_are_not_swapped() -> None:
    found = proven(truth(2, lambda on: 1 in on, unswappable=frozenset({1})))
    assert found.swap_agrees is None
    assert all(trial.method is Method.PATH for trial in found.trials)


@given(st.integers(1, 24), st.data())
def test_any_single_cause_is_named_and_no_other(count: int, data: st.DataObject) -> None:
    cause = data.draw(st.integers(0, count - 1))
    origins = data.draw(st.sets(st.integers(0, count - 1)))
    found = proven(truth(count, lambda on: cause in on, origins=origins))
    assert (found.causality, found.cause, found.sufficient) == (Causality.ONE, (cause,), ((cause,),))


@given(st.integers(1, 10), st.data())
def test_what_is_called_a_cause_always_restores_and_what_is_called_enough_always_induces(
    count: int, data: st.DataObject
) -> None:
    clauses = data.draw(st.lists(st.sets(st.integers(0, count - 1), min_size=1, max_size=3), min_size=1, max_size=3))

    def effect(on: frozenset[int]) -> bool:
        return any(clause <= on for clause in clauses)

    found = proven(truth(count, effect))
    everything = frozenset(range(count))
    assert found.causality is not Causality.NONE
    assert not effect(everything - set(found.cause))
    assert all(effect(frozenset(some)) for some in found.sufficient)
    for left_out in found.cause if len(found.cause) > 1 else ():
        assert effect(everything - (set(found.cause) - {left_out}))


def test_row_counts_are_a_cause_where_row_independent_kernels_make_the_runs_agree() -> None:
    found = proven(truth(4, never, neutral_agrees=lambda on: 2 in on), Subject.ROW_COUNTS)
    assert (found.causality, found.cause) == (Causality.ONE, (2,))
    assert {trial.method for trial in found.trials} == {Method.ROWS}


def test_row_counts_are_cleared_where_the_runs_differ_even_then() -> None:
    found = proven(truth(4, lambda on: 2 in on), Subject.ROW_COUNTS)
    assert found.causality is Causality.NONE
    assert found.trials == ()


def test_what_shares_a_step_is_tried_together_and_counts_as_one() -> None:
    """Two chunks of run A stand against one prefill of run B: both must be changed in A, so neither is enough."""
    chunks = truth(3, lambda on: {1, 2} <= on)
    site = chunks.candidates[0].sites
    chunks.candidates = (candidate(0), Candidate(4, 9, site, True), Candidate(5, 9, site, True))
    found = proven(chunks)
    assert (found.causality, found.cause, found.sufficient) == (Causality.ONE, (1, 2), ((1, 2),))


def test_a_search_that_would_take_for_ever_is_left_with_a_set_that_holds() -> None:
    joint = truth(60, lambda on: len(on) >= 50)
    found = proven(joint)
    assert found.reruns < 250
    assert "may not be the smallest" in found.note
    assert all(len(some) >= 50 for some in found.sufficient)
