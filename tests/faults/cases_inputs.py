"""Pairs that were never the same question: other weights, other prompts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.request import SamplingParams
from engine.settings import EngineSettings
from tests.faults.case import Arm, Case
from tests.faults.cases_paths import GEMV
from tests.faults.oracles import inputs
from tests.faults.workloads import TINY, VICTIM, model, neighbour, victim, with_prompt


def cases() -> Iterator[Case]:
    """All pairs of this module."""
    for settings in (GEMV, EngineSettings(policy="threshold:4")):
        yield _weights(settings)
    for name in TINY[:2]:
        yield _prompt(name)
        yield _sampling(name)


def _weights(settings: EngineSettings) -> Case:
    def arms(seed: int) -> tuple[Arm, Arm]:
        run = Arm(model("llama-2"), settings, (victim(seed), neighbour(seed)))
        return run, replace(run, loaded=model("llama-2-other"))

    return Case("other weights", f"llama-2 {settings.policy}", arms, inputs(), request=VICTIM)


def _prompt(name: str) -> Case:
    """The first token is there twice: two layers both add the beginning of text."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        request = victim(seed)
        run = Arm(model(name), GEMV, (request,))
        return run, replace(run, requests=(with_prompt(request, (request.prompt[0], *request.prompt)),))

    return Case("other prompt (first token doubled)", name, arms, inputs(), request=VICTIM)


def _sampling(name: str) -> Case:
    """The request itself asks for another temperature, and the trace says so."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        run = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        warm = victim(seed, sampling=SamplingParams(temperature=0.9, seed=seed))
        return run, replace(run, requests=(warm, neighbour(seed)))

    return Case("other sampling settings", name, arms, inputs(), request=VICTIM)
