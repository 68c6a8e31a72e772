"""Pairs whose logits agree and whose tokens do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from divtrace.verdict.records import Verdict
from engine.kernels.policy import LinearPath
from engine.request import SamplingParams
from tests.faults.build import Fault, several
from tests.faults.case import Arm, Case, MakeFault, swapped
from tests.faults.cases_paths import GEMV, SPECULATION, settings
from tests.faults.oracles import at_flip
from tests.faults.paths import PathSwitch
from tests.faults.selection import DrawsAtZero, LastWins, LatePenalties, OtherSampler, UnverifiedDraft
from tests.faults.workloads import NEIGHBOUR, TINY, VICTIM, model, neighbour, repetitive_prompt, victim, with_prompt

PENALTY = SamplingParams(repetition_penalty=1.3)
WARM, HOT = SamplingParams(temperature=0.3, seed=1), SamplingParams(temperature=1.5, seed=2)


def cases() -> Iterator[Case]:
    """All pairs of this module."""
    yield _plain("last-wins ties", "ties", LastWins)
    yield replace(_plain("last-wins ties", "ties", LastWins), name="ties same build", build=LastWins)
    for name in TINY[:3]:
        yield _plain("penalties one token late", name, LatePenalties, PENALTY)
        yield _plain("sampler of another request", name, lambda: OtherSampler(VICTIM, 24, NEIGHBOUR), WARM, HOT)
        yield _plain("draws at temperature 0", name, lambda: DrawsAtZero(VICTIM, 26))
        yield _draft(name, False)
    for name in TINY[:2]:
        yield _draft(name, True)
        yield swapped(_draft(name, False))
    yield _plain("penalties one token late", "smollm2", LatePenalties, PENALTY)


def _plain(
    kind: str, name: str, fault: MakeFault, mine: SamplingParams | None = None, other: SamplingParams | None = None
) -> Case:
    def arms(seed: int) -> tuple[Arm, Arm]:
        requests = victim(seed, sampling=mine), neighbour(seed, tokens=34, sampling=other)
        plain = Arm(model(name), GEMV, requests)
        return plain, replace(plain, fault=fault)

    return Case(kind, name, arms, at_flip(Verdict.SELECTION, VICTIM), request=VICTIM)


def _draft(name: str, with_drift: bool) -> Case:
    """A proposal is committed unverified; `with_drift`: while an innocent path switch has moved the state before."""

    def fault() -> Fault:
        unverified = UnverifiedDraft(VICTIM, 24)
        drift = PathSwitch(VICTIM, 22, "model.layers.*proj", LinearPath.GEMM_F32.value)
        return several([drift, unverified]) if with_drift else unverified

    def arms(seed: int) -> tuple[Arm, Arm]:
        request = with_prompt(victim(seed, 20, 40), repetitive_prompt(seed, 20))
        plain = Arm(model(name), settings(speculation=SPECULATION), (request, neighbour(seed)))
        return plain, replace(plain, fault=fault)

    oracle = at_flip(Verdict.SELECTION, VICTIM, verdict_only=with_drift)
    label = f"{name}{' with drift' if with_drift else ''}"
    return Case("draft accepted unverified", label, arms, oracle, request=VICTIM)
