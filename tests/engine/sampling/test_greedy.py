import numpy as np
import pytest

from engine.errors import EngineError
from engine.sampling.greedy import greedy_token


def test_the_lowest_id_wins_a_tie() -> None:
    assert greedy_token(np.array([1.0, 3.0, 2.0, 3.0], np.float32)) == 1


def test_negative_zero_and_zero_are_a_tie() -> None:
    assert greedy_token(np.array([-1.0, -0.0, 0.0], np.float32)) == 1


def test_a_logit_of_nan_is_an_error_that_names_the_place() -> None:
    logits = np.array([1.0, np.nan, 9.0], np.float32)
    with pytest.raises(EngineError, match="request 'a', position 12: the logit of token 1 is NaN"):
        greedy_token(logits, "request 'a', position 12")


def test_a_row_without_a_possible_token_is_an_error() -> None:
    with pytest.raises(EngineError, match="every logit is -inf"):
        greedy_token(np.full(4, -np.inf, np.float32))
