import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SettingsError
from engine.settings import ProposalPolicy
from engine.speculative.length import (
    AcceptanceRateLength,
    AcceptedLength,
    BatchSizeLength,
    LengthUpTo,
    ProposalLength,
    first_length,
)


def lengths_after(state: ProposalLength, outcomes: list[tuple[int, int]]) -> list[int]:
    lengths = []
    for proposed, accepted in outcomes:
        state = state.after(proposed, accepted)
        lengths.append(state.length(1))
    return lengths


@pytest.mark.parametrize("policy", list(ProposalPolicy))
def test_every_policy_starts_with_the_tokens_it_was_given(policy: ProposalPolicy) -> None:
    assert first_length(policy, 4).length(1) == 4
    assert first_length(policy, 16).length(1) == 16


def test_a_fixed_length_stays() -> None:
    assert lengths_after(first_length(ProposalPolicy.FIXED, 4), [(4, 0), (4, 4)]) == [4, 4]


def test_the_rate_moves_the_length_by_one_outside_its_thresholds_only() -> None:
    state = AcceptanceRateLength(4)
    assert lengths_after(state, [(4, 1), (3, 0), (2, 0), (1, 0)]) == [3, 2, 1, 1]
    assert lengths_after(state, [(5, 2), (5, 3), (5, 4)]) == [4, 4, 4]
    assert lengths_after(state, [(1, 1)] * 6) == [5, 6, 7, 8, 8, 8]


def test_the_accepted_length_is_one_more_than_its_moving_average() -> None:
    state = first_length(ProposalPolicy.ACCEPTED_LENGTH, 4)
    # averages 2.4, 1.92, 1.536, 1.2288
    assert lengths_after(state, [(4, 0)] * 4) == [3, 3, 3, 2]
    assert lengths_after(AcceptedLength(7.0), [(8, 8)] * 3) == [8, 8, 8]
    assert AcceptedLength(2.5).length(1) == 4


def test_a_step_without_proposals_changes_nothing() -> None:
    for policy in ProposalPolicy:
        state = first_length(policy, 4)
        assert state.after(0, 0) == state


def test_by_batch_size_the_proposals_of_a_step_stay_about_as_many() -> None:
    state = first_length(ProposalPolicy.BATCH_SIZE, 8)
    assert [state.length(running) for running in (1, 2, 3, 4, 5, 8, 9, 100)] == [8, 4, 2, 2, 1, 1, 0, 0]


def test_a_table_out_of_order_is_refused() -> None:
    with pytest.raises(SettingsError, match="must rise in requests"):
        BatchSizeLength((LengthUpTo(4, 2), LengthUpTo(2, 4)))
    with pytest.raises(SettingsError, match="no length below 0"):
        BatchSizeLength((LengthUpTo(4, -2),))


@given(
    st.sampled_from([ProposalPolicy.ACCEPTANCE_RATE, ProposalPolicy.ACCEPTED_LENGTH]),
    st.integers(1, 16),
    st.lists(st.integers(0, 16), max_size=50),
)
def test_adaptive_lengths_stay_in_their_bounds(policy: ProposalPolicy, tokens: int, accepted: list[int]) -> None:
    state = first_length(policy, tokens)
    for count in accepted:
        proposed = state.length(1)
        assert 1 <= proposed <= max(8, tokens)
        state = state.after(proposed, min(count, proposed))
