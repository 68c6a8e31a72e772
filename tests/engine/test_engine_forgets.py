"""What an engine keeps of requests that have ended: their completions, and no object more."""

from __future__ import annotations

import gc
from collections import Counter
from functools import cache
from typing import Any

import pytest

from engine.engine import Engine
from engine.metrics.observer import MetricsObserver
from engine.model.load import LoadedModel
from engine.request import Arrival, Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model

KEPT = {"Completion", "SpeculationStatistics", "RequestTimes"}
"""Results: what a request returned, how its drafts fared, and (the newest ones) its moments in the metrics."""

BY_ROW_COUNT = {"SiteChoice", "LinearCall"}
"""Plans are remembered by their row counts, whoever the rows belong to."""

FEW, MANY = 10, 60


@cache
def model() -> LoadedModel:
    return tiny_model(layers=2, hidden_size=32, intermediate_size=32, heads=2, kv_heads=1)


def requests(count: int) -> list[Request]:
    """Ends of every kind: length, stop, cancelled, refused, an impossible bias, an arrival that never comes."""
    nothing = SamplingParams(logit_bias=tuple((token, float("-inf")) for token in range(model().vocabulary_size)))
    made = []
    for index in range(count):
        prompt = tuple((index + 5 * place) % 256 for place in range(3 + index % 9))
        kinds: list[dict[str, Any]] = [
            {},
            {"stop_token_ids": tuple(range(128))},
            {"cancel_at_step": index // 2 + 1},
            {"max_tokens": 5000},
            {"sampling": nothing},
            {"arrival": Arrival(0, f"r{index - 1}", 4000)},
            {"stop_strings": ("never",), "sampling": SamplingParams(temperature=1.0, seed=index)},
        ]
        values = {"max_tokens": 6, "arrival": Arrival(index // 2), "ignore_eos": True} | kinds[index % len(kinds)]
        made.append(Request(f"r{index}", prompt, **values))
    return made


def objects_of_the_engine() -> Counter[str]:
    gc.collect()
    return Counter(
        type(found).__name__ for found in gc.get_objects() if str(type(found).__module__).startswith("engine.")
    )


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "self"])
@pytest.mark.parametrize("kv", ["paged", "contiguous"])
def test_ended_requests_leave_nothing_but_their_results(drafter: str, kv: str) -> None:
    speculation = {"drafter": drafter, "self_layers": 1, "tokens": 2}
    settings = EngineSettings.model_validate(
        {"policy": "gemm", "gemm": "f32", "kv": kv, "max_active": 4, "speculation": speculation}
    )
    model()
    before = objects_of_the_engine()  # other tests of the process may hold some
    counts = []
    with Engine(model(), settings, (MetricsObserver(),)) as engine:
        waiting = requests(MANY)
        for stop in (FEW, MANY):
            for request in waiting[len(engine.completions) : stop]:
                engine.submit(request)
            engine.run()
            assert len(engine.completions) == stop
            counts.append(objects_of_the_engine() - before)
        assert not engine.states
    few, many = counts
    assert few["RequestState"] == 0
    assert many["LifecycleEvent"] < MANY // 4, "only those behind the last step are still to be told"
    grown = {name for name in many if many[name] > few[name]} - {"LifecycleEvent"}
    assert "Completion" in grown
    assert grown <= KEPT | BY_ROW_COUNT
    del waiting, request
    assert not {"Request", "RequestState", "StopWatch"} & set(objects_of_the_engine() - before)
