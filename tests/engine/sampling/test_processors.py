import numpy as np
import pytest

from engine.errors import EngineError
from engine.request import SamplingParams
from engine.sampling.processors import process_logits, process_rows

LOGITS = np.array([2.0, -2.0, 0.0, 4.0, 1.0], np.float32)


def test_logits_that_nothing_changes_are_the_same_object() -> None:
    params = SamplingParams(temperature=0.7, top_k=3, top_p=0.5, min_p=0.1)
    assert process_logits(LOGITS, params, [0, 1, 2], 1) is LOGITS
    rows = np.stack([LOGITS, LOGITS])
    assert process_rows(rows, params, [0], 1, [2]) is rows


def test_the_argument_is_never_written_to() -> None:
    before = LOGITS.tobytes()
    process_logits(LOGITS, SamplingParams(repetition_penalty=2.0, logit_bias=((0, 5.0),)), [0, 1], 1)
    assert LOGITS.tobytes() == before


def test_the_repetition_penalty_lowers_every_seen_token_of_prompt_and_output_once() -> None:
    processed = process_logits(LOGITS, SamplingParams(repetition_penalty=2.0), [0, 1, 1, 3], 2)
    np.testing.assert_array_equal(processed, np.array([1.0, -4.0, 0.0, 2.0, 1.0], np.float32))


def test_presence_and_frequency_count_the_output_alone() -> None:
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=0.5)
    processed = process_logits(LOGITS, params, [0, 0, 4, 4, 3], 2)
    np.testing.assert_array_equal(processed, np.array([2.0, -2.0, 0.0, 2.5, -1.0], np.float32))


def test_bias_comes_before_the_repetition_penalty() -> None:
    params = SamplingParams(repetition_penalty=2.0, logit_bias=((0, 2.0),))
    assert process_logits(LOGITS, params, [0], 1)[0] == 2.0


def test_a_bias_of_minus_infinity_forbids_a_token() -> None:
    params = SamplingParams(logit_bias=((3, -np.inf),), repetition_penalty=1.5)
    assert process_logits(LOGITS, params, [3], 1).argmax() == 0


@pytest.mark.parametrize("token", [-1, 5])
def test_a_token_outside_the_vocabulary_is_an_error_and_no_wrapped_index(token: int) -> None:
    with pytest.raises(EngineError, match=f"token {token} of the history lies outside"):
        process_logits(LOGITS, SamplingParams(repetition_penalty=1.1), [0, token], 1)
    with pytest.raises(EngineError, match=f"names token {token}"):
        process_logits(LOGITS, SamplingParams(logit_bias=((token, 1.0),)), [0], 1)


def test_a_verification_row_sees_the_proposals_before_it() -> None:
    params = SamplingParams(presence_penalty=1.0)
    rows = process_rows(np.stack([LOGITS] * 3), params, [0], 1, [3, 4])
    expected = [process_logits(LOGITS, params, history, 1) for history in ([0], [0, 3], [0, 3, 4])]
    assert rows.tobytes() == np.stack(expected).tobytes()
    assert rows[:, 3].tolist() == [4.0, 3.0, 3.0]
