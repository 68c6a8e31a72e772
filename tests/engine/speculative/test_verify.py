import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.request import SamplingParams
from engine.sampling.processors import process_logits, process_rows
from engine.sampling.sampler import choose_token
from engine.speculative.drafter import Proposal
from engine.speculative.verify import residual, verify

GREEDY = SamplingParams()
SAMPLED = SamplingParams(temperature=1.0, seed=3)
VOCABULARY_SIZE = 4


def rows_choosing(*tokens: int) -> npt.NDArray[np.float32]:
    rows = np.zeros((len(tokens), VOCABULARY_SIZE), np.float32)
    rows[np.arange(len(tokens)), tokens] = 5.0
    return rows


def test_accepted_proposals_end_at_the_first_that_the_target_would_not_choose() -> None:
    result = verify(rows_choosing(1, 2, 3, 0), Proposal((1, 3, 3)), GREEDY, "r", 10)
    assert (result.accepted_tokens, result.next_token, result.committed) == (1, 2, (1, 2))
    assert result.chosen_tokens == (1, 2, 3, 0)
    assert result.random_numbers == (None,) * 4


def test_all_accepted_gives_the_bonus_token() -> None:
    result = verify(rows_choosing(1, 2, 3), Proposal((1, 2)), GREEDY, "r", 10)
    assert (result.accepted_tokens, result.next_token, result.committed) == (2, 3, (1, 2, 3))


def test_without_the_bonus_row_all_accepted_gives_nothing_more() -> None:
    result = verify(rows_choosing(1, 2), Proposal((1, 2)), GREEDY, "r", 10)
    assert (result.accepted_tokens, result.next_token, result.committed) == (2, None, (1, 2))


def test_without_the_bonus_row_a_rejection_still_gives_the_targets_token() -> None:
    result = verify(rows_choosing(1, 2), Proposal((1, 0)), GREEDY, "r", 10)
    assert (result.accepted_tokens, result.next_token, result.committed) == (1, 2, (1, 2))


def test_no_proposal_is_a_plain_decode() -> None:
    result = verify(rows_choosing(2), Proposal(), GREEDY, "r", 10)
    assert (result.accepted_tokens, result.committed) == (0, (2,))


def test_a_tie_accepts_the_lowest_id_only() -> None:
    tied = np.array([[1.0, 3.0, 3.0, 0.0], [0, 0, 0, 1]], np.float32)
    assert verify(tied, Proposal((2,)), GREEDY, "r", 0).committed == (1,)
    assert verify(tied, Proposal((1,)), GREEDY, "r", 0).committed == (1, 3)


def test_greedy_acceptance_does_not_look_at_the_drafts_probabilities() -> None:
    drafted = np.full((1, VOCABULARY_SIZE), 0.25)
    result = verify(rows_choosing(1, 2), Proposal((3,), drafted), GREEDY, "r", 0)
    assert (result.committed, result.random_numbers) == ((1,), (None, None))


def test_the_result_depends_on_seed_request_and_position_and_on_nothing_else() -> None:
    rows = np.zeros((3, 50), np.float32)
    drafted = np.full((2, 50), 0.02)
    proposal = Proposal((1, 2), drafted)
    results = {}
    for request_id in ("a", "b"):
        for position in (5, 6):
            results[request_id, position] = verify(rows, proposal, SAMPLED, request_id, position)
    again = {key: verify(rows, proposal, SAMPLED, *key) for key in reversed(results)}
    assert again == results
    assert len({result.random_numbers for result in results.values()}) == 4


def test_a_draft_equal_to_the_target_is_always_accepted() -> None:
    rows = np.zeros((3, 8), np.float32)
    proposal = Proposal((7, 0), np.full((2, 8), 0.125))
    assert all(verify(rows, proposal, SAMPLED, f"r{i}", 0).accepted_tokens == 2 for i in range(50))


def test_a_proposal_that_the_target_forbids_is_never_accepted() -> None:
    rows = np.array([[0, -np.inf, 0, 0]] * 2, np.float32)
    proposal = Proposal((1,), np.full((1, 4), 0.25))
    for i in range(50):
        result = verify(rows, proposal, SAMPLED, f"r{i}", 0)
        assert result.accepted_tokens == 0
        assert result.next_token != 1


def test_the_residual_is_what_the_target_has_over_the_draft() -> None:
    target, drafted = np.array([0.5, 0.3, 0.2]), np.array([0.25, 0.5, 0.25])
    assert residual(target, drafted).tolist() == [0.25, 0.0, 0.0]
    assert residual(target, target) is target


def test_a_token_that_its_own_draft_could_not_have_drawn_is_an_error() -> None:
    proposal = Proposal((1,), np.array([[0.5, 0.0, 0.5, 0.0]]))
    with pytest.raises(EngineError, match="request 'r', position 9: token 1 was proposed with probability 0"):
        verify(rows_choosing(1, 2), proposal, SAMPLED, "r", 9)


@pytest.mark.parametrize("row_count", [0, 1, 4])
def test_rows_that_do_not_fit_the_proposals_are_an_error(row_count: int) -> None:
    with pytest.raises(EngineError, match=f"2 proposals need 2 or 3 logits rows, but there are {row_count}"):
        verify(np.zeros((row_count, 4), np.float32), Proposal((1, 2)), GREEDY, "r", 0)


def test_probabilities_over_another_vocabulary_are_an_error() -> None:
    with pytest.raises(EngineError, match="must share one vocabulary"):
        verify(rows_choosing(1, 2), Proposal((1,), np.full((1, 5), 0.2)), SAMPLED, "r", 0)


TABLE = np.random.default_rng(5).normal(size=(VOCABULARY_SIZE, VOCABULARY_SIZE)).astype(np.float32)
token_ids = st.integers(0, VOCABULARY_SIZE - 1)
parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.8]),
    top_k=st.sampled_from([0, 2]),
    repetition_penalty=st.sampled_from([1.0, 1.8]),
    presence_penalty=st.sampled_from([0.0, 0.9]),
    frequency_penalty=st.sampled_from([0.0, 0.5]),
    seed=st.integers(0, 1000),
)


def plain_output(params: SamplingParams, prompt: list[int], length: int) -> list[int]:
    history = list(prompt)
    while len(history) < len(prompt) + length:
        row = process_logits(TABLE[history[-1]], params, history, len(prompt))
        history.append(choose_token(row, params, "r", len(history)).token)
    return history


@given(
    parameters,
    st.lists(token_ids, min_size=1, max_size=3),
    st.lists(st.lists(token_ids, max_size=5), min_size=12, max_size=12),
    st.booleans(),
)
def test_acceptance_by_equality_gives_the_tokens_of_plain_decoding_whatever_is_proposed(
    params: SamplingParams, prompt: list[int], proposals: list[list[int]], bonus: bool
) -> None:
    expected = plain_output(params, prompt, 60)
    history = list(prompt)
    for proposed in proposals:
        inputs = [history[-1], *proposed][: max(1, len(proposed) + bonus)]
        rows = process_rows(TABLE[inputs], params, history, len(prompt), proposed)
        result = verify(rows, Proposal(tuple(proposed)), params, "r", len(history))
        assert result.committed == tuple(expected[len(history) : len(history) + len(result.committed)])
        assert len(result.committed) >= 1
        history += result.committed


@given(parameters, st.lists(token_ids, min_size=1, max_size=3), st.integers(1, 6), st.integers(0, 6))
def test_proposing_what_plain_decoding_gives_is_accepted_up_to_the_first_error(
    params: SamplingParams, prompt: list[int], length: int, right: int
) -> None:
    right = min(right, length)
    expected = plain_output(params, prompt, length + 1)[len(prompt) :]
    proposed = [token if i < right else (token + 1) % VOCABULARY_SIZE for i, token in enumerate(expected[:length])]
    rows = process_rows(TABLE[[prompt[-1], *proposed]], params, prompt, len(prompt), proposed)
    result = verify(rows, Proposal(tuple(proposed)), params, "r", len(prompt))
    assert result.accepted_tokens == right
    assert result.committed == tuple(expected[: right + 1])
