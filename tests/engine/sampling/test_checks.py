import math

import pytest

from engine.errors import SettingsError
from engine.request import SamplingParams
from engine.sampling.checks import check_sampling

VOCABULARY_SIZE = 10


def test_the_defaults_and_the_edges_of_every_range_are_accepted() -> None:
    check_sampling(SamplingParams(), VOCABULARY_SIZE)
    check_sampling(
        SamplingParams(temperature=2.0, top_k=99, top_p=1.0, min_p=1.0, logit_bias=((9, -math.inf),)),
        VOCABULARY_SIZE,
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (SamplingParams(temperature=-0.5), "temperature is -0.5"),
        (SamplingParams(temperature=math.nan), "temperature is nan"),
        (SamplingParams(temperature=math.inf), "temperature is inf"),
        (SamplingParams(top_k=-1), "top_k is -1"),
        (SamplingParams(top_p=0.0), "top_p is 0.0"),
        (SamplingParams(top_p=1.5), "top_p is 1.5"),
        (SamplingParams(min_p=-0.1), "min_p is -0.1"),
        (SamplingParams(repetition_penalty=0.0), "repetition_penalty is 0.0"),
        (SamplingParams(presence_penalty=math.inf), "presence_penalty is inf"),
        (SamplingParams(frequency_penalty=math.nan), "frequency_penalty is nan"),
        (SamplingParams(logit_bias=((10, 1.0),)), "logit_bias token is 10, but must be from 0 to 9"),
        (SamplingParams(logit_bias=((-1, 1.0),)), "logit_bias token is -1"),
        (SamplingParams(logit_bias=((3, math.inf),)), "logit_bias of token 3 is inf"),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(params: SamplingParams, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check_sampling(params, VOCABULARY_SIZE)
