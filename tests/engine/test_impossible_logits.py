"""Logits from which no token can be chosen end one request, alone: its neighbours keep every bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.engine import Engine
from engine.kv.store import KVStore
from engine.model.load import LoadedModel
from engine.model.packed import ForwardResult
from engine.request import Arrival, FinishReason, Request, SamplingParams
from engine.settings import EngineSettings, SpeculationSettings
from fixtures.tiny_models import tiny_model
from tests.engine.collector import Collector

SPECULATION = SpeculationSettings.model_validate({"drafter": "self", "self_layers": 1, "tokens": 3})


@cache
def model() -> LoadedModel:
    return tiny_model()


def prompt(length: int, first: int = 0) -> tuple[int, ...]:
    return tuple((first + 3 * index) % 256 for index in range(length))


class Damaging(Engine):
    """Puts `value` into the deciding logits of `position` of a request, as a kernel that overflows would."""

    damage: tuple[str, int, float] | None = None

    def _forward(self, batch: Batch) -> ForwardResult:
        result = super()._forward(batch)
        if self.damage is None:
            return result
        request_id, position, value = self.damage
        row, logits = 0, np.array(result.logits)
        for segment in batch.segments:
            for index in range(segment.wanted_logits):
                decided = segment.end_position - segment.wanted_logits + index + 1
                if segment.request_id == request_id and decided == position:
                    logits[row + index] = value
            row += segment.wanted_logits
        return replace(result, logits=logits)


def run(
    requests: Sequence[Request], damage: tuple[str, int, float] | None = None, **settings: Any
) -> tuple[Engine, Collector]:
    collector = Collector()
    values: dict[str, Any] = {"policy": "gemv", "audit_every": 1} | settings
    with Damaging(model(), EngineSettings(**values), (collector,)) as engine:
        engine.damage = damage
        for request in requests:
            engine.submit(request)
        engine.run()
    return engine, collector


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("speculation", [SpeculationSettings(), SPECULATION])
def test_a_request_without_a_possible_token_ends_alone(
    value: float, temperature: float, speculation: SpeculationSettings
) -> None:
    sick = Request("sick", prompt(20), 12, SamplingParams(temperature=temperature), ignore_eos=True)
    well = Request("well", prompt(11, 7), 16, SamplingParams(temperature=temperature, seed=3), ignore_eos=True)
    plain, before = run([sick, well], speculation=speculation)
    engine, seen = run([sick, well], ("sick", 24, value), speculation=speculation)
    ended = engine.completions["sick"]
    assert ended.finish_reason is FinishReason.ERROR
    assert ended.detail.startswith("request 'sick', position 24: ")
    assert ended.tokens == plain.completions["sick"].tokens[:4]
    assert engine.completions["well"].finish_reason is FinishReason.LENGTH
    assert seen.of_request(well) == before.of_request(well)
    assert engine.store.state().blocks_used == 0
    assert [e.kind for step in seen.events for e in step.lifecycle if e.request_id == "sick"] == ["admitted", "failed"]
    failed = [row for step in seen.events for row in step.sampled if (row.request_id, row.position) == ("sick", 24)]
    assert failed
    assert not any(row.committed for row in failed)


def test_a_bias_that_allows_no_token_ends_its_request_alone() -> None:
    nothing = tuple((token, -np.inf) for token in range(model().vocabulary_size))
    biased = Request("biased", prompt(9), 5, SamplingParams(logit_bias=nothing))
    engine, _ = run([biased, Request("well", prompt(6, 5), 5, ignore_eos=True)])
    assert engine.completions["biased"].finish_reason is FinishReason.ERROR
    assert engine.completions["biased"].detail == (
        "request 'biased', position 9: every logit is -inf, so no token can be chosen; check the logit bias."
    )
    assert engine.completions["biased"].first_token_s is None
    assert len(engine.completions["well"].tokens) == 5


def test_impossible_logits_behind_a_rejected_proposal_harm_nobody() -> None:
    """Their row was computed from a token that is not in the text: plain decoding would never have seen them."""
    request = Request("r", prompt(20), 16, ignore_eos=True)
    plain, before = run([request], speculation=SPECULATION)
    rejected = [row.position for step in before.events for row in step.sampled if not row.committed and step.drafts]
    assert rejected
    for position in rejected[:3]:
        first = next(s.batch.step for s in before.events for row in s.sampled if row.position == position)
        engine, _ = _damaged_in_step(request, position, first)
        assert engine.completions["r"].finish_reason is FinishReason.LENGTH
        assert engine.completions["r"].tokens == plain.completions["r"].tokens


def _damaged_in_step(request: Request, position: int, step: int) -> tuple[Engine, Collector]:
    class Once(Damaging):
        def _forward(self, batch: Batch) -> ForwardResult:
            self.damage = ("r", position, np.nan) if batch.step == step else None
            return super()._forward(batch)

    collector = Collector()
    with Once(model(), EngineSettings(policy="gemv", speculation=SPECULATION, audit_every=1), (collector,)) as engine:
        engine.submit(request)
        engine.run()
    return engine, collector


class Poisoning(Engine):
    """Puts NaN into the V rows of layer 0 that one request's prefill computes."""

    def _forward(self, batch: Batch) -> ForwardResult:
        store = _PoisonedStore(self.store, batch)
        return self.packed.forward(batch, store, capture_kv=self._wants_kv)  # type: ignore[arg-type]


class _PoisonedStore:
    def __init__(self, store: KVStore, batch: Batch) -> None:
        self._store, self._batch = store, batch

    def write(self, layer: int, keys: Any, values: Any) -> None:
        values = np.array(values)
        for segment in self._batch.segments:
            if segment.request_id == "sick" and layer == 0:
                values[segment.first_row + 3 : segment.first_row + segment.rows] = np.nan
        self._store.write(layer, keys, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_rows_of_a_failed_request_are_never_reused() -> None:
    """They stand under the tokens of its prompt; whoever brings the same prompt must compute it anew."""
    sick = Request("sick", prompt(40), 4, ignore_eos=True)
    twin = Request("twin", prompt(40), 4, ignore_eos=True, arrival=Arrival(at_step=20))
    alone, _ = run([replace(twin, arrival=Arrival())], prefix_cache=True)
    settings = EngineSettings(policy="gemv", prefix_cache=True, audit_every=1)
    with Poisoning(model(), settings) as engine:
        engine.submit(sick)
        engine.submit(twin)
        engine.run()
    assert engine.completions["sick"].finish_reason is FinishReason.ERROR
    assert engine.completions["twin"].tokens == alone.completions["twin"].tokens
