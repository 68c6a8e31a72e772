"""Pairs whose kernels differ: switches, tables, maxima, splits, chunks, prefix hits, recomputes, stacks and decoys."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from divtrace.origin.records import SiteClass
from divtrace.verdict.records import Verdict
from engine.kernels.policy import LinearPath
from engine.settings import EngineSettings
from tests.faults.build import Fault, several
from tests.faults.case import Arm, Case, Pair, Truth, run_arm
from tests.faults.kernels import COARSE, SPLIT, UNORDERED
from tests.faults.oracles import inputs, planted
from tests.faults.paths import AlwaysPath, BatchMaximum, HoleyTable, PathSwitch, SplitByLength
from tests.faults.workloads import (
    TINY,
    VICTIM,
    layers_of,
    model,
    neighbour,
    victim,
)

SPECULATION = {"drafter": "prompt-lookup", "tokens": 3}


def settings(**changes: Any) -> EngineSettings:
    """Forced GEMV with changes, and K/V memory of a size that small machines do not notice."""
    return EngineSettings(**{"policy": "gemv", "max_model_length": 256, **changes})


GEMV = settings()
SEEDS = 120


def seeds_from(first: int) -> tuple[int, ...]:
    """All seeds, beginning with one at which a token was seen to flip: another BLAS may have to search on."""
    return tuple((first + offset) % SEEDS for offset in range(SEEDS))


def cases() -> Iterator[Case]:
    """All pairs of this module."""
    yield from _switches()
    yield from _batch_rules()
    yield from _stacks()
    yield from _unordered()
    yield path_switch("smollm2", "model.layers.2.self_attn.k_proj", COARSE, 2, SiteClass.QKV, False)
    yield path_switch("smollm2", "model.layers.*proj", COARSE, 0, SiteClass.QKV, True)
    yield _rule(
        "dispatch table with holes", "smollm2", lambda: HoleyTable(frozenset({13}), COARSE), Verdict.KERNEL_PATH, 0
    )


SWITCHES = (
    ("model.layers.0.self_attn.k_proj", COARSE, 0, SiteClass.QKV),
    ("model.layers.0.self_attn.q_proj", COARSE, 1, SiteClass.QKV),
    ("model.layers.1.self_attn.v_proj", COARSE, 1, SiteClass.QKV),
    ("model.layers.0.self_attn.o_proj", COARSE, 1, SiteClass.OUTPUT_PROJECTION),
    ("model.layers.0.mlp.down_proj", COARSE, 1, SiteClass.MLP),
    ("model.layers.0.mlp.gate_proj", LinearPath.GEMM_F16.value, 1, SiteClass.MLP),
)


def _switches() -> Iterator[Case]:
    for index, (site, path, layer, site_class) in enumerate(SWITCHES):
        name = TINY[index % len(TINY)]
        for speculative in (False, True) if index % 2 == 0 else (False,):
            yield path_switch(name, site, path, layer, site_class, speculative)
    yield path_switch("llama-2", "model.layers.0.self_attn", SPLIT, 1, SiteClass.ATTENTION, False)
    yield path_switch("qwen3-3", "model.layers.1.self_attn", SPLIT, 2, SiteClass.ATTENTION, False)
    yield path_switch("llama-4", "model.layers.*proj", COARSE, 0, SiteClass.QKV, False)
    yield _head_switch("llama-2")
    yield _head_switch("qwen3-3")


def path_switch(
    name: str, site: str, path: str, layer: int, site_class: SiteClass, speculative: bool, position: int = 24
) -> Case:
    """One site (or all that match) on another path at the step that writes one position."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        chosen = settings(speculation=SPECULATION) if speculative else GEMV
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        changed = replace(plain, settings=chosen, fault=lambda: PathSwitch(VICTIM, position, site, path))
        return plain, changed

    verdict = Verdict.ATTENTION_SPLIT if site_class is SiteClass.ATTENTION else Verdict.KERNEL_PATH
    oracle = planted(verdict, layer, site_class, VICTIM)
    tail = site.removeprefix("model.layers.")
    # A flip of the real model is a long search for one projection, and state alone is to be explained as well.
    flips = path != LinearPath.GEMM_F16.value and not (name == "smollm2" and site.endswith("k_proj"))
    label = f"{name} {tail}{' spec' if speculative else ''}{'' if flips else ' no flip'}"
    return Case("path switch", label, arms, oracle, flips=flips, request=VICTIM)


def _head_switch(name: str) -> Case:
    """The head switches at the very decision that flips: the position of the decision, not of the row."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, fault=lambda: PathSwitch(VICTIM, 30, "lm_head", COARSE))

    oracle = planted(
        Verdict.KERNEL_PATH,
        layers_of(name),
        SiteClass.HEAD,
        VICTIM,
        lambda pair: pair.ran_b.fault.struck[0].position + 1,
    )
    return Case("path switch", f"{name} lm_head", arms, oracle, request=VICTIM, seeds=tuple(range(200)))


def _batch_rules() -> Iterator[Case]:
    for name in TINY[:3]:
        yield _rule(
            "dispatch table with holes", name, lambda: HoleyTable(frozenset({5, 13}), COARSE), Verdict.KERNEL_PATH, 0
        )
    for name in TINY[1:]:
        yield _rule("batch-wide maximum", name, lambda: BatchMaximum(10, SPLIT), Verdict.ATTENTION_SPLIT, 1, rows=9)
    for name in TINY[:2]:
        yield _rule(
            "attention split by length",
            name,
            lambda: SplitByLength(30, SPLIT),
            Verdict.ATTENTION_SPLIT,
            1,
            rows=9,
            other=36,
        )
    yield _own_length("llama-4")


def _rule(kind: str, name: str, fault: Any, verdict: Verdict, layer: int, rows: int = 20, other: int = 12) -> Case:
    """One build with a rule that looks at the batch: the victim alone against the victim with company."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        requests = victim(seed, rows), neighbour(seed, other)
        alone = Arm(model(name), settings(max_active=1), requests, fault)
        return alone, replace(alone, settings=settings(max_active=2))

    site_class = SiteClass.QKV if layer == 0 else SiteClass.ATTENTION
    oracle = planted(verdict, layer, site_class, VICTIM)
    return Case(kind, name, arms, oracle, build=fault, flips=name != "smollm2", request=VICTIM)


def _own_length(name: str) -> Case:
    """One build splits keys beyond a length, the other does not; a plain engine replays both."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, fault=lambda: SplitByLength(32, SPLIT))

    oracle = planted(Verdict.ATTENTION_SPLIT, 1, SiteClass.ATTENTION, VICTIM)
    return Case("attention split by length", f"{name} own length", arms, oracle, request=VICTIM)


def _stacks() -> Iterator[Case]:
    for name in TINY[:3]:
        yield _three(name)
    for name in TINY[:3]:
        yield _decoy(name)


def _three(name: str) -> Case:
    places = (22, 27, 31)

    def made() -> Fault:
        return several([PathSwitch(VICTIM, place, "model.layers.*proj", COARSE) for place in places])

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, fault=made)

    oracle = planted(Verdict.KERNEL_PATH, 0, SiteClass.QKV, VICTIM)
    return Case("three stacked causes", name, arms, oracle, request=VICTIM)


def _decoy(name: str) -> Case:
    """A switch that moves the last bits early, and a coarse one later that alone makes the token flip."""

    def decoy() -> Fault:
        return PathSwitch(VICTIM, 22, "model.layers.*proj", LinearPath.GEMM_F32.value)

    def cause() -> Fault:
        return PathSwitch(VICTIM, 28, "model.layers.*proj", COARSE)

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, fault=lambda: several([decoy(), cause()]))

    def oracle(pair: Pair) -> Truth:
        alone = run_arm(replace(pair.b, fault=cause)).outputs[VICTIM]
        if run_arm(replace(pair.b, fault=decoy)).outputs != pair.ran_a.outputs or alone != pair.ran_b.outputs[VICTIM]:
            raise LookupError(f"{pair.case.name}: the decoy is no decoy here")
        steps = [s.step for s in pair.ran_b.fault.struck if s.request == VICTIM]
        return Truth(Verdict.KERNEL_PATH, VICTIM, causes=(steps[-1],))

    return Case("decoy", name, arms, oracle, request=VICTIM)


def _unordered() -> Iterator[Case]:
    for name in TINY[:3]:

        def arms(seed: int, name: str = name) -> tuple[Arm, Arm]:
            run = Arm(model(name), GEMV, (victim(seed, 20, 60), neighbour(seed)), lambda: AlwaysPath(UNORDERED))
            return run, run

        yield Case(
            "unordered reduction",
            name,
            arms,
            inputs(Verdict.NOT_REPRODUCIBLE),
            build=lambda: AlwaysPath(UNORDERED),
            flips=False,
            request=VICTIM,
        )
