import numpy as np
import pytest

from engine.errors import EngineError
from engine.request import SamplingParams
from engine.sampling.sampler import choose_token, draw_token, probabilities

FLAT = np.zeros(6, np.float32)
STEPS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def kept(logits: np.ndarray, **params: float) -> list[int]:
    distribution = probabilities(logits, SamplingParams(temperature=1.0, **params))  # type: ignore[arg-type]
    assert abs(distribution.sum() - 1.0) < 1e-12
    return np.flatnonzero(distribution).tolist()


def test_top_k_keeps_the_lowest_ids_of_a_tie() -> None:
    assert kept(FLAT, top_k=2) == [0, 1]


@pytest.mark.parametrize("top_k", [0, 4, 5, 1000])
def test_top_k_of_zero_or_at_least_the_vocabulary_keeps_everything(top_k: int) -> None:
    assert kept(STEPS, top_k=top_k) == [0, 1, 2, 3]


def test_top_k_of_one_is_the_greedy_token() -> None:
    assert kept(np.array([1.0, 7.0, 7.0], np.float32), top_k=1) == [1]


def test_a_tiny_top_p_keeps_one_token() -> None:
    assert kept(STEPS, top_p=1e-9) == [1]
    assert kept(FLAT, top_p=1e-9) == [0]


def test_top_p_keeps_the_shortest_run_that_reaches_the_mass() -> None:
    assert kept(STEPS, top_p=0.39) == [1]
    assert kept(STEPS, top_p=0.41) == [1, 3]
    assert kept(STEPS, top_p=0.89) == [1, 2, 3]
    assert kept(STEPS, top_p=0.95) == [0, 1, 2, 3]


def test_top_p_that_is_reached_exactly_ends_the_run_and_drops_higher_ids_of_a_tie() -> None:
    assert kept(np.zeros(4, np.float32), top_p=0.5) == [0, 1]


def test_top_p_measures_the_mass_that_top_k_left() -> None:
    # of tokens 1 (0.4) and 3 (0.3) alone, token 1 has 0.57 of the mass
    assert kept(STEPS, top_p=0.5) == [1, 3]
    assert kept(STEPS, top_k=2, top_p=0.5) == [1]


def test_top_p_finds_its_run_beyond_the_first_candidates() -> None:
    nearly_flat = -np.arange(20_000, dtype=np.float32) / 2**20
    count = len(kept(nearly_flat, top_p=0.5))
    assert 9_900 < count < 10_000
    assert kept(nearly_flat, top_p=0.5) == list(range(count))
    assert kept(nearly_flat[::-1], top_p=0.5) == list(range(20_000 - count, 20_000))


def test_top_p_keeps_the_lowest_ids_of_a_tie_wider_than_the_first_candidates() -> None:
    assert kept(np.zeros(20_000, np.float32), top_p=0.5) == list(range(10_000))


def test_min_p_is_relative_to_the_most_likely_token_and_keeps_equals_together() -> None:
    assert kept(np.log(np.array([0.1, 0.4, 0.1, 0.4], np.float32)), min_p=0.3) == [1, 3]
    assert kept(FLAT, min_p=1.0) == [0, 1, 2, 3, 4, 5]


def test_a_forbidden_token_has_no_probability() -> None:
    assert kept(np.array([0.0, -np.inf, 0.0], np.float32)) == [0, 2]


def test_temperature_sharpens_towards_the_greedy_token() -> None:
    distribution = probabilities(STEPS, SamplingParams(temperature=1e-300))
    assert distribution.tolist() == [0.0, 1.0, 0.0, 0.0]
    np.testing.assert_allclose(
        probabilities(STEPS, SamplingParams(temperature=0.5)), np.array([1, 16, 4, 9]) / 30, rtol=1e-6
    )


def test_greedy_parameters_give_a_point_mass_and_no_random_number() -> None:
    assert probabilities(STEPS, SamplingParams()).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert choose_token(STEPS, SamplingParams(), "a", 3).random_number is None


def test_a_draw_inverts_the_distribution_in_id_order() -> None:
    distribution = np.array([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    draws = [draw_token(distribution, number) for number in (0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53)]
    assert draws == [1, 1, 3, 3, 4, 4]


def test_a_draw_that_rounds_up_to_the_total_takes_the_last_possible_token() -> None:
    denormal = np.array([5e-324, 0.0])
    assert draw_token(denormal, 1 - 2**-53) == 0


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(temperature=1.0)])
def test_unusable_logits_name_request_and_position(params: SamplingParams) -> None:
    with pytest.raises(EngineError, match="request 'r', position 7: the logit of token 0 is NaN"):
        choose_token(np.array([np.nan, 1.0], np.float32), params, "r", 7)
    with pytest.raises(EngineError, match="request 'r', position 7: every logit is -inf"):
        choose_token(np.full(2, -np.inf, np.float32), params, "r", 7)


def test_an_infinite_logit_cannot_be_sampled() -> None:
    with pytest.raises(EngineError, match="the logit of token 1 is infinite"):
        choose_token(np.array([0.0, np.inf], np.float32), SamplingParams(temperature=1.0), "r", 7)
