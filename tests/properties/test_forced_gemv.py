"""The property that the project is named for: under forced GEMV, and under the invariant kernels, nothing but a
request's own tokens decides its bits.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.model.load import LoadedModel
from engine.request import Arrival, Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model
from tests.engine.collector import RequestRecord, collect

MODELS = [(architecture, quantized) for architecture in ("llama", "qwen2", "qwen3") for quantized in (False, True)]


@cache
def model(architecture: str, quantized: bool) -> LoadedModel:
    return tiny_model(architecture, quantized=quantized)


@cache
def alone(architecture: str, quantized: bool, policy: str, request: Request) -> RequestRecord:
    """The reference: one request, whole prompt at once, contiguous K/V, no speculation, nothing shared."""
    bare = Request(request.id, request.prompt, request.max_tokens, request.sampling)
    reference = EngineSettings(policy=policy, max_active=1, kv="contiguous")
    return collect(model(architecture, quantized), reference, [bare]).of_request(bare)


samplings = st.one_of(
    st.just(SamplingParams()),
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.3]),
        top_k=st.sampled_from([0, 5]),
        top_p=st.sampled_from([1.0, 0.8]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
        presence_penalty=st.sampled_from([0.0, 0.5]),
        seed=st.integers(0, 3),
    ),
)


@st.composite
def workloads(draw: st.DrawFn) -> list[Request]:
    """A few requests, many of which share a prefix, or a whole prompt; some arrive late, some are cancelled."""
    stem = tuple(draw(st.lists(st.integers(0, 255), min_size=1, max_size=40)))
    requests: list[Request] = []
    for index in range(draw(st.integers(1, 5))):
        own = tuple(draw(st.lists(st.integers(0, 255), min_size=1, max_size=24)))
        prompt = stem + own if draw(st.booleans()) else own
        sampled = draw(st.sampled_from(requests)) if requests and draw(st.integers(0, 2)) == 0 else None
        if requests and draw(st.booleans()):
            arrival = Arrival(0, draw(st.sampled_from([r.id for r in requests])), draw(st.integers(1, 3)))
        else:
            arrival = Arrival(draw(st.integers(0, 6)))
        requests.append(
            Request(
                f"r{index}",
                prompt if sampled is None else sampled.prompt,
                draw(st.integers(3, 14)),
                draw(samplings),
                priority=draw(st.integers(0, 2)),
                arrival=arrival,
                sample_of=None if sampled is None else sampled.id,
            )
        )
    if len(requests) > 1 and draw(st.booleans()):
        victim = requests[-1]
        requests[-1] = Request(
            victim.id,
            victim.prompt,
            victim.max_tokens,
            victim.sampling,
            arrival=victim.arrival,
            cancel_at_step=draw(st.integers(1, 20)),
            sample_of=victim.sample_of,
        )
    return requests


@st.composite
def engine_settings(draw: st.DrawFn, policy: str) -> EngineSettings:
    """Every knob of scheduling, memory and speculation; the kernel policy alone is given."""
    paged = draw(st.booleans())
    block_size = draw(st.sampled_from([4, 16]))
    values: dict[str, Any] = {
        "policy": policy,
        "max_active": draw(st.integers(1, 4)),
        "token_budget": draw(st.integers(4, 64)),
        "budget_unit": draw(st.sampled_from(["rows", "work"])),
        "long_prefill_threshold": draw(st.sampled_from([0, 0, 5])),
        "scheduling": draw(
            st.sampled_from(["fcfs", "priority", "shortest-prefill", "round-robin", "longest-cached-prefix"])
        ),
        "admission": draw(st.sampled_from(["reserve", "optimistic", "static"])),
        "kv": "paged" if paged else "contiguous",
        "block_size": block_size,
        "max_model_length": 128,
        "prefix_cache": paged and draw(st.booleans()),
        "align_prefill_to_blocks": draw(st.booleans()),
    }
    if paged:
        fewest = -(-(64 + 14) // block_size)
        values["kv_blocks"] = draw(st.integers(fewest, 3 * fewest))
    if draw(st.booleans()):
        values["speculation"] = {
            "drafter": draw(st.sampled_from(["prompt-lookup", "self"])),
            "self_layers": 1,
            "tokens": draw(st.integers(1, 5)),
            "bonus": draw(st.booleans()),
            "proposal": draw(st.sampled_from(["fixed", "acceptance-rate", "accepted-length", "batch-size"])),
        }
    return EngineSettings(**values)


@pytest.mark.parametrize("policy", ["gemv", "invariant"])
@pytest.mark.parametrize(("architecture", "quantized"), MODELS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_request_is_bit_equal_to_itself_alone(
    architecture: str, quantized: bool, policy: str, data: st.DataObject
) -> None:
    requests = data.draw(workloads())
    seen = collect(model(architecture, quantized), data.draw(engine_settings(policy)), requests)
    for request in requests:
        expected = alone(architecture, quantized, policy, request)
        if request.id not in seen.completions:
            assert request.cancel_at_step is not None
            continue
        found = seen.of_request(request)
        count = len(found.tokens)
        assert found.tokens == expected.tokens[:count]
        assert found.decisions == expected.decisions[:count]
        assert found.kv == expected.kv[: len(found.kv)]
        if request.cancel_at_step is None:
            assert (count, len(found.kv)) == (request.max_tokens, len(expected.kv))
