"""Pairs whose schedules differ, with and without a planted switch: what moved the path is the question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from divtrace.origin.records import SiteClass
from divtrace.verdict.records import Verdict
from engine.batch import SegmentKind
from engine.request import Arrival, Request, SamplingParams
from tests.faults.build import several
from tests.faults.case import Arm, Case, swapped
from tests.faults.cases_paths import GEMV, SPECULATION, path_switch, seeds_from, settings
from tests.faults.kernels import COARSE, UNORDERED
from tests.faults.oracles import by_schedules, inputs, planted
from tests.faults.paths import AlwaysPath, PathSwitch
from tests.faults.rows import Preempt
from tests.faults.workloads import TINY, VICTIM, model, neighbour, prompt, repetitive_prompt, victim, with_prompt


def cases() -> Iterator[Case]:
    """All pairs of this module."""
    yield from _schedules()
    yield from _other_schedules()
    yield from _confusable()


def _schedules() -> Iterator[Case]:
    for name in TINY[:3]:
        yield _chunks(name, {"token_budget": 9})
    yield _chunks("llama-4", {"long_prefill_threshold": 7})
    for name in TINY[:3]:
        yield _prefix(name)
    for name in TINY[:3]:
        yield _preemption(name)
    for name in TINY[:2]:
        yield _shared_batch(name, speculative=False)
    yield _shared_batch("llama-2", speculative=True)


def _chunks(name: str, changes: dict[str, Any]) -> Case:
    def arms(seed: int) -> tuple[Arm, Arm]:
        whole = Arm(model(name), settings(policy="threshold:10"), (victim(seed, 24, 60),))
        return whole, replace(whole, settings=settings(policy="threshold:10", **changes))

    oracle = by_schedules(Verdict.CHUNK_BOUNDARY, VICTIM)
    return Case(
        "chunk boundary", f"{name} {next(iter(changes))}", arms, oracle, request=VICTIM, seeds=tuple(range(120))
    )


def _prefix(name: str) -> Case:
    """The donor has computed 32 tokens that the victim shares; then 6 rows of the victim remain."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        stem = prompt(seed, 32, 4)
        donor = Request("donor", stem + prompt(seed, 4, 5), 6, ignore_eos=True)
        late = Request(VICTIM, stem + prompt(seed, 6, 6), 60, ignore_eos=True, arrival=Arrival(0, "donor", 6))
        cold = Arm(model(name), settings(policy="threshold:10"), (donor, late))
        return cold, replace(cold, settings=settings(policy="threshold:10", prefix_cache=True))

    oracle = by_schedules(Verdict.PREFIX_CACHE_REUSE, VICTIM)
    first = {"llama-2": 21, "qwen3-3": 2, "qwen2-q4": 6}.get(name, 0)
    return Case("prefix hit, other row count", name, arms, oracle, request=VICTIM, seeds=seeds_from(first))


def _preemption(name: str) -> Case:
    def arms(seed: int) -> tuple[Arm, Arm]:
        requests = victim(seed, 20, 60), neighbour(seed, 6, 30, after=1)
        plain = Arm(model(name), settings(policy="threshold:10"), requests)
        return plain, replace(plain, fault=lambda: Preempt(VICTIM, 32))

    oracle = by_schedules(Verdict.PREEMPTION_RECOMPUTE, VICTIM)
    first = {"llama-2": 3, "qwen3-3": 17, "qwen2-q4": 23}.get(name, 0)
    return Case("preemption, other row count", name, arms, oracle, request=VICTIM, seeds=seeds_from(first))


def _shared_batch(name: str, speculative: bool) -> Case:
    """Nothing planted: the real case. A neighbour's prefill moves the batch over the threshold."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        more = {"speculation": SPECULATION} if speculative else {}
        requests = victim(seed, 20, 80), neighbour(seed, 12, 4)
        alone = Arm(model(name), settings(policy="threshold:4", max_active=1, **more), requests)
        return alone, replace(alone, settings=settings(policy="threshold:4", max_active=2, **more))

    oracle = by_schedules(Verdict.KERNEL_PATH, VICTIM)
    label = f"{name}{' spec' if speculative else ''}"
    first = {"llama-2": 8, "qwen3-3": 28}.get(name, 0)
    return Case("threshold and a neighbour", label, arms, oracle, request=VICTIM, seeds=seeds_from(first))


def _other_schedules() -> Iterator[Case]:
    """A switch at rows that were also chunked, reused or recomputed: under forced GEMV none of that can matter."""
    kind = "switch under another schedule"
    oracle = planted(Verdict.KERNEL_PATH, 0, SiteClass.QKV, VICTIM)
    for name in TINY[:2]:

        def chunked(seed: int, name: str = name) -> tuple[Arm, Arm]:
            whole = Arm(model(name), GEMV, (victim(seed, 24),))
            fault = lambda: PathSwitch(VICTIM, 10, "model.layers.*proj", COARSE)  # noqa: E731
            return whole, replace(whole, settings=settings(token_budget=9), fault=fault)

        def reused(seed: int, name: str = name) -> tuple[Arm, Arm]:
            stem = prompt(seed, 32, 4)
            donor = Request("donor", stem + prompt(seed, 4, 5), 6, ignore_eos=True)
            late = Request(VICTIM, stem + prompt(seed, 6, 6), 40, ignore_eos=True, arrival=Arrival(0, "donor", 6))
            cold = Arm(model(name), GEMV, (donor, late))
            fault = lambda: PathSwitch(VICTIM, 34, "model.layers.*proj", COARSE)  # noqa: E731
            return cold, replace(cold, settings=settings(prefix_cache=True), fault=fault)

        def recomputed(seed: int, name: str = name) -> tuple[Arm, Arm]:
            requests = victim(seed, 20, 60), neighbour(seed, 6, 30, after=1)
            plain = Arm(model(name), GEMV, requests, lambda: Preempt(VICTIM, 32))
            switch = lambda: PathSwitch(VICTIM, 20, "model.layers.*proj", COARSE, SegmentKind.RECOMPUTE)  # noqa: E731
            return plain, replace(plain, fault=lambda: several([Preempt(VICTIM, 32), switch()]))

        yield Case(kind, f"{name} chunks", chunked, oracle, request=VICTIM)
        yield Case(kind, f"{name} prefix", reused, oracle, request=VICTIM)
        yield Case(kind, f"{name} recompute", recomputed, oracle, request=VICTIM)


def _donor_switch(name: str) -> Case:
    """Both runs take the donor's rows from the prefix cache; in one the donor's prefill took another path."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        stem = prompt(seed, 32, 4)
        donor = Request("donor", stem + prompt(seed, 4, 5), 6, ignore_eos=True)
        late = Request(VICTIM, stem + prompt(seed, 6, 6), 40, ignore_eos=True, arrival=Arrival(0, "donor", 6))
        plain = Arm(model(name), settings(prefix_cache=True), (donor, late))
        return plain, replace(plain, fault=lambda: PathSwitch("donor", 5, "model.layers.*proj", COARSE))

    oracle = planted(Verdict.KERNEL_PATH, 0, SiteClass.QKV, "donor")
    return Case("switch in a donor's prefill", name, arms, oracle, request=VICTIM)


def _verification(name: str) -> Case:
    """Verification rows go over the threshold that single decodes stay under."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        request = with_prompt(victim(seed, 20, 80), repetitive_prompt(seed, 20))
        plain = Arm(model(name), settings(policy="threshold:3"), (request,))
        return plain, replace(plain, settings=settings(policy="threshold:3", speculation=SPECULATION))

    oracle = by_schedules(Verdict.KERNEL_PATH, VICTIM)
    first = {"qwen3-3": 76, "llama-4": 41}.get(name, 0)
    return Case("verification over the threshold", name, arms, oracle, request=VICTIM, seeds=seeds_from(first))


def _sampled(name: str) -> Case:
    """The token is drawn: equal random numbers, other logits."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        warm = victim(seed, sampling=SamplingParams(temperature=0.8, seed=seed))
        plain = Arm(model(name), GEMV, (warm, neighbour(seed)))
        return plain, replace(plain, fault=lambda: PathSwitch(VICTIM, 24, "model.layers.*proj", COARSE))

    oracle = planted(Verdict.KERNEL_PATH, 0, SiteClass.QKV, VICTIM)
    return Case("path switch", f"{name} sampled", arms, oracle, request=VICTIM)


def _other_policy(name: str) -> Case:
    """Another kernel everywhere, as the settings say."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, settings=settings(policy="threshold:0", attention="row"))

    oracle = by_schedules(Verdict.KERNEL_PATH, VICTIM)
    return Case("other policy", name, arms, oracle, request=VICTIM, seeds=seeds_from(1))


def _one_unordered(name: str) -> Case:
    """Only one of the runs took the kernel that sums in no order."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed, 20, 60), neighbour(seed)))
        return plain, replace(plain, fault=lambda: AlwaysPath(UNORDERED))

    oracle = inputs(Verdict.NOT_REPRODUCIBLE)
    return Case("unordered reduction", f"{name} one run", arms, oracle, flips=False, request=VICTIM)


def _confusable() -> Iterator[Case]:
    """Kernel paths that look like something else: a donor's switch behind a prefix hit, drafts, sampling, a policy."""
    for name in TINY[:2]:
        yield _donor_switch(name)
        yield _sampled(name)
        yield _other_policy(name)
    for name in ("qwen3-3", "llama-4"):
        yield _verification(name)
    yield swapped(path_switch("llama-2", "model.layers.*proj", COARSE, 0, SiteClass.QKV, False))
    yield _one_unordered("llama-2")
