import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SettingsError
from engine.speculative.drafter import DraftRequest
from engine.speculative.prompt_lookup import PromptLookupDrafter, PromptLookupSettings


def proposed(tokens: list[int], length: int = 4, **settings: int) -> tuple[int, ...]:
    drafter = PromptLookupDrafter(PromptLookupSettings(**settings))
    return drafter.propose([DraftRequest("r", tokens, length)])[0].tokens


def test_what_followed_the_last_tokens_before_is_proposed() -> None:
    assert proposed([1, 2, 3, 4, 5, 9, 1, 2], length=3) == (3, 4, 5)


def test_the_longest_ngram_wins_over_a_more_recent_shorter_one() -> None:
    text = [1, 2, 3, 7, 9, 2, 3, 8, 1, 2, 3]
    assert proposed(text, length=1, longest=3, shortest=2) == (7,)
    assert proposed(text, length=1, longest=2, shortest=2) == (8,)


def test_of_equal_ngrams_the_most_recent_wins() -> None:
    assert proposed([1, 2, 5, 1, 2, 6, 1, 2], length=1) == (6,)


def test_a_continuation_that_reaches_the_end_goes_on_periodically() -> None:
    assert proposed([1, 2, 3, 1, 2, 3, 1, 2], length=7) == (3, 1, 2, 3, 1, 2, 3)
    assert proposed([4, 4, 4], length=5) == (4, 4, 4, 4, 4)


@pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3, 4]])
def test_nothing_is_proposed_without_an_earlier_occurrence(tokens: list[int]) -> None:
    assert proposed(tokens) == ()


def test_a_match_must_have_the_shortest_length() -> None:
    assert proposed([5, 1, 6, 1], shortest=2) == ()
    assert proposed([5, 1, 6, 1], length=2, shortest=1) == (6, 1)


def test_requests_do_not_share_an_index() -> None:
    drafter = PromptLookupDrafter()
    first, second = drafter.propose([DraftRequest("a", [1, 2, 3, 1, 2], 1), DraftRequest("b", [1, 2, 4, 1, 2], 1)])
    assert (first.tokens, second.tokens) == ((3,), (4,))


def slow_lookup(tokens: list[int], length: int, longest: int, shortest: int) -> tuple[int, ...]:
    for size in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                text = list(tokens)
                for offset in range(length):
                    text.append(text[end + offset])
                return tuple(text[len(tokens) :])
    return ()


@given(
    st.lists(st.integers(0, 3), max_size=40),
    st.lists(st.integers(1, 5), min_size=1, max_size=8),
    st.integers(1, 2),
    st.integers(2, 4),
)
def test_the_growing_index_finds_what_a_search_of_the_whole_text_finds(
    text: list[int], growth: list[int], shortest: int, longest: int
) -> None:
    settings = PromptLookupSettings(longest=longest, shortest=shortest, miss_limit=10_000)
    drafter = PromptLookupDrafter(settings)
    end = 0
    for step in growth:
        end += step
        known = text[:end]
        proposal = drafter.propose([DraftRequest("r", known, 3)])[0]
        assert proposal.tokens == slow_lookup(known, 3, longest, shortest)


def test_after_a_run_of_misses_it_pauses_and_then_tries_again() -> None:
    drafter = PromptLookupDrafter(PromptLookupSettings(miss_limit=2, cooldown_steps=3))
    request = DraftRequest("r", [1, 2, 3, 1, 2], 2)
    lengths = []
    for _ in range(7):
        lengths.append(len(drafter.propose([request])[0].tokens))
        drafter.committed("r", [9])
    assert lengths == [2, 2, 0, 0, 0, 2, 2]


def test_one_accepted_token_ends_the_run_of_misses() -> None:
    drafter = PromptLookupDrafter(PromptLookupSettings(miss_limit=2, cooldown_steps=3))
    request = DraftRequest("r", [1, 2, 3, 1, 2], 2)
    for committed in (9, 3, 9):
        assert drafter.propose([request])[0].tokens == (3, 1)
        drafter.committed("r", [committed])
    assert drafter.propose([request])[0].tokens == (3, 1)


def test_a_step_without_a_match_is_a_miss() -> None:
    drafter = PromptLookupDrafter(PromptLookupSettings(miss_limit=1, cooldown_steps=1))
    drafter.propose([DraftRequest("r", [1, 2, 3], 2)])
    drafter.committed("r", [1])
    assert drafter.propose([DraftRequest("r", [1, 2, 3, 1, 2], 2)])[0].tokens == ()
    assert drafter.propose([DraftRequest("r", [1, 2, 3, 1, 2], 2)])[0].tokens == (3, 1)


def test_commits_without_a_pending_proposal_are_no_misses() -> None:
    drafter = PromptLookupDrafter(PromptLookupSettings(miss_limit=1, cooldown_steps=5))
    drafter.committed("unknown", [1])
    drafter.propose([DraftRequest("r", [1, 2, 3, 1, 2], 1)])
    drafter.committed("r", [3])
    for _ in range(5):
        drafter.committed("r", [9])
    assert drafter.propose([DraftRequest("r", [1, 2, 3, 1, 2], 1)])[0].tokens == (3,)


def test_a_rolled_back_text_is_forgotten() -> None:
    drafter = PromptLookupDrafter()
    drafter.propose([DraftRequest("r", [1, 2, 3, 1, 2], 1)])
    drafter.rolled_back("r", 2)
    assert drafter.propose([DraftRequest("r", [1, 2, 4, 1, 2], 1)])[0].tokens == (4,)
    drafter.rolled_back("unknown", 0)


def test_a_closed_request_starts_anew_under_the_same_id() -> None:
    drafter = PromptLookupDrafter()
    drafter.propose([DraftRequest("r", [1, 2, 3, 1, 2], 1)])
    drafter.closed("r")
    drafter.closed("never seen")
    assert drafter.propose([DraftRequest("r", [5, 1, 2], 1)])[0].tokens == ()
    assert drafter.forwards == ()


@pytest.mark.parametrize(
    "values", [{"shortest": 0}, {"shortest": 3, "longest": 2}, {"miss_limit": 0}, {"cooldown_steps": -1}]
)
def test_settings_that_make_no_sense_are_refused(values: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="prompt lookup"):
        PromptLookupSettings(**values)
