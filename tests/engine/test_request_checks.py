"""A request that makes no sense is refused with one sentence when it is submitted, and changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.engine import Engine
from engine.errors import SettingsError
from engine.request import Arrival, Request, SamplingParams
from engine.request_checks import check_request
from engine.settings import EngineSettings
from engine.workload import build_requests, parse_workload
from fixtures.tiny_models import tiny_model

VOCABULARY = 64

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "request id '' has 0 characters; use 1 to 200."),
    ({"id": "x" * 201}, "request id 'xxxxxxxxxxxxxxxxxxxx' has 201 characters; use 1 to 200."),
    ({"prompt": ()}, "request 'r' needs at least one prompt token and max_tokens of 1 or more."),
    ({"max_tokens": 0}, "request 'r' needs at least one prompt token and max_tokens of 1 or more."),
    ({"prompt": (1, 64)}, "request 'r' has token 64, outside the vocabulary of 64."),
    ({"stop_token_ids": (2, -1)}, "request 'r' has stop token -1, outside the vocabulary of 64."),
    ({"stop_token_ids": (64,)}, "request 'r' has stop token 64, outside the vocabulary of 64."),
    ({"stop_strings": ("a", "")}, "request 'r': a stop string is empty; remove it."),
    (
        {"cancel_at_step": -1},
        "request 'r': cancel_at_step is -1, but steps are numbered from 0; use 0 or more, or None.",
    ),
    ({"timeout_s": 0.0}, "request 'r': timeout_s is 0.0, but must be finite and above 0, or None for no limit."),
    ({"timeout_s": -2.5}, "request 'r': timeout_s is -2.5, but must be finite and above 0, or None for no limit."),
    (
        {"timeout_s": float("nan")},
        "request 'r': timeout_s is nan, but must be finite and above 0, or None for no limit.",
    ),
    (
        {"timeout_s": float("inf")},
        "request 'r': timeout_s is inf, but must be finite and above 0, or None for no limit.",
    ),
    (
        {"arrival": Arrival(at_step=-3)},
        "request 'r': its arrival is at step -3, but steps are numbered from 0; use 0 or more.",
    ),
    ({"arrival": Arrival(0, "r", 1)}, "request 'r' arrives after itself; name another request."),
    (
        {"arrival": Arrival(0, "other", 0)},
        "request 'r': it arrives after 0 tokens of 'other', but must wait for 1 or more.",
    ),
    ({"sampling": SamplingParams(top_p=0.0)}, "sampling: top_p is 0.0, but must be above 0 and at most 1 (off)."),
]


def request(**changes: Any) -> Request:
    values: dict[str, Any] = {"id": "r", "prompt": (1, 2), "max_tokens": 3} | changes
    return Request(**values)


@pytest.mark.parametrize(("changes", "sentence"), WRONG, ids=[sentence[:40] for _, sentence in WRONG])
def test_one_sentence_names_the_field_and_its_value(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_request(request(**changes), VOCABULARY)
    assert str(caught.value) == sentence


def test_the_limits_themselves_are_allowed() -> None:
    first, last = (0,), (VOCABULARY - 1,)
    check_request(
        request(prompt=first + last, stop_token_ids=first + last, cancel_at_step=0, timeout_s=1e-9), VOCABULARY
    )
    check_request(request(arrival=Arrival(0, "other", 1), id="x" * 200), VOCABULARY)


def test_a_refused_request_leaves_the_engine_as_it_was() -> None:
    with Engine(tiny_model(), EngineSettings(policy="gemv")) as engine:
        with pytest.raises(SettingsError, match="timeout_s"):
            engine.submit(request(timeout_s=-1.0))
        assert not engine.states
        engine.submit(request())
        assert len(engine.run()["r"].tokens) == 3


@given(
    st.fixed_dictionaries(
        {"max_tokens": st.integers(1, 9)},
        optional={
            "cancel_at_step": st.integers(0, 9),
            "timeout_s": st.floats(0.001, 1e6),
            "stop_token_ids": st.lists(st.integers(0, VOCABULARY - 1), max_size=3),
            "arrival": st.fixed_dictionaries({"at_step": st.integers(0, 5)}),
            "priority": st.integers(-5, 5),
        },
    )
)
def test_what_a_workload_file_accepts_is_accepted(fields: dict[str, Any]) -> None:
    spec = parse_workload({"model": "m", "requests": [{"id": "r", "prompt_tokens": [1, 2], **fields}]}, "test")
    for built in build_requests(spec, tiny_model().tokenizer):
        check_request(built, VOCABULARY)
