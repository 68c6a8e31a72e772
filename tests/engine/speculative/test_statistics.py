import json

import pytest

from engine.errors import EngineError
from engine.speculative.statistics import SpeculationStatistics


def test_a_request_without_speculation_commits_one_token_a_step() -> None:
    statistics = SpeculationStatistics()
    statistics.record(0, 0)
    summary = statistics.summary()
    assert (summary.num_spec_steps, summary.mean_acceptance_length, summary.draft_acceptance_rate) == (
        0,
        1.0,
        0.0,
    )


def test_the_numbers_follow_from_the_steps() -> None:
    statistics = SpeculationStatistics()
    for drafted, accepted in [(4, 4), (4, 0), (4, 1), (2, 1), (4, 0)]:
        statistics.record(drafted, accepted)
    summary = statistics.summary()
    assert (summary.num_spec_steps, summary.num_draft_tokens, summary.num_accepted_draft_tokens) == (5, 18, 6)
    assert summary.mean_acceptance_length == 1 + 6 / 5
    assert summary.draft_acceptance_rate == 6 / 18
    assert summary.acceptance_histogram == {0: 2, 1: 2, 4: 1}
    assert summary.acceptance_histogram_by_draft_length == {2: {1: 1}, 4: {0: 2, 1: 1, 4: 1}}
    assert summary.accepted_tokens_per_position == (3, 1, 1, 1)
    assert summary.acceptance_rate_per_position == (3 / 5, 1 / 5, 1 / 4, 1 / 4)


def test_the_summary_is_json() -> None:
    statistics = SpeculationStatistics()
    statistics.record(2, 1)
    text = json.loads(json.dumps(statistics.summary().as_json()))
    assert text["acceptance_histogram_by_draft_length"] == {"2": {"1": 1}}


@pytest.mark.parametrize(("drafted", "accepted"), [(2, 3), (2, -1)])
def test_an_impossible_step_is_an_error(drafted: int, accepted: int) -> None:
    with pytest.raises(EngineError, match="is impossible"):
        SpeculationStatistics().record(drafted, accepted)
