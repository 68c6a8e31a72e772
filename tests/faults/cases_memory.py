"""Pairs whose memory or rows are wrong: stale blocks, changed and swapped rows, lost tokens, positions, NaN."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from divtrace.origin.records import SiteClass
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from divtrace.verdict.records import Verdict
from engine.request import Arrival, Request
from tests.faults.build import Fault, several
from tests.faults.case import Arm, Case, Pair, Truth, swapped
from tests.faults.cases_paths import GEMV, SPECULATION, settings
from tests.faults.kernels import INFINITE, OVERFLOWING
from tests.faults.memory import ChangedRow, StaleBlock, SwappedRows, WrongPrefixBlock
from tests.faults.oracles import planted
from tests.faults.paths import PathSwitch
from tests.faults.rows import InfiniteLogit, LostToken, Preempt, RecordingChanges, RopeOffByOne
from tests.faults.workloads import (
    NEIGHBOUR,
    TINY,
    VICTIM,
    layers_of,
    model,
    neighbour,
    prompt,
    repetitive_prompt,
    victim,
    with_prompt,
)

CORRUPTION = Verdict.STATE_CORRUPTION


def cases() -> Iterator[Case]:
    """All pairs of this module."""
    for name in TINY[:3]:
        yield _struck("stale block", name, StaleBlock(VICTIM, 34, 1, NEIGHBOUR), 1)
        yield _struck("row changed after writing", name, ChangedRow(VICTIM, 26, 8, 0, 2.0), 1)
        yield _struck("rows of two requests swapped", name, SwappedRows(VICTIM, 30, NEIGHBOUR, (4, 9)), 1)
    for struck in (StaleBlock(VICTIM, 34, 1, NEIGHBOUR), ChangedRow(VICTIM, 26, 8, 0, 2.0)):
        kind = "stale block" if isinstance(struck, StaleBlock) else "row changed after writing"
        yield swapped(_struck(kind, "llama-2", struck, 1))
    yield _unaudited("llama-2")
    yield _struck("row changed after writing", "llama-4", ChangedRow(VICTIM, 26, 8, 2, 2.0, in_values=True), 3)
    yield _struck("row changed after writing", "smollm2", ChangedRow(VICTIM, 26, 8, 3, 2.0), 4)
    for name in TINY[:2]:
        yield _wrong_prefix(name)
    for name in TINY[:3]:
        yield _lost_token(name)
        yield _rope(name)
    for name in TINY[:2]:
        yield _infinite(name)
    for name in TINY[:2]:
        yield _infinite_head(name)
    yield _overflow("llama-2")
    for name in TINY[:2]:
        yield _recording(name)


def _struck(kind: str, name: str, fault: Fault, layer: int) -> Case:
    """Damage that an audit of every step sees."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        requests = victim(seed, 20, 40), neighbour(seed, 20, 30, after=1)
        plain = Arm(model(name), GEMV, requests, audit_every=1)
        return plain, replace(plain, fault=lambda: replace(fault, struck=[]))  # type: ignore[type-var]

    oracle = planted(CORRUPTION, layer, None, VICTIM)
    return Case(kind, name, arms, oracle, flips=name != "smollm2", request=VICTIM)


def _unaudited(name: str) -> Case:
    """The same damage that nobody audited: the traces cannot tell it from a run that does not repeat itself."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed, 20, 40), neighbour(seed, 20, 30, after=1)))
        return plain, replace(plain, fault=lambda: ChangedRow(VICTIM, 26, 8, 0, 2.0))

    def oracle(pair: Pair) -> Truth:
        assert pair.ran_b.fault.struck
        return Truth(Verdict.NOT_REPRODUCIBLE)

    return Case("row changed, no audit", name, arms, oracle, request=VICTIM)


def _wrong_prefix(name: str) -> Case:
    """Two donors share the first block only; the victim is given the second block of the wrong one."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        stem, own = prompt(seed, 16, 4), prompt(seed, 16, 5)
        right = Request("right", stem + own + prompt(seed, 3, 6), 30, ignore_eos=True)
        wrong = Request("wrong", stem + prompt(seed, 16, 7) + prompt(seed, 3, 8), 30, ignore_eos=True)
        late = Request(VICTIM, stem + own + prompt(seed, 5, 9), 40, ignore_eos=True, arrival=Arrival(0, "right", 3))
        plain = Arm(model(name), settings(prefix_cache=True), (right, wrong, late))
        return plain, replace(plain, fault=lambda: WrongPrefixBlock(VICTIM, "wrong"))

    def oracle(pair: Pair) -> Truth:
        """The record that does not belong where it was read: the wrong donor's row, whoever read it."""
        assert pair.ran_b.fault.struck
        return Truth(CORRUPTION, "wrong", _writer_step(pair, "wrong", 16), 16, 0)

    return Case("stale block", f"{name} prefix", arms, oracle, request=VICTIM)


def _writer_step(pair: Pair, request: str, position: int) -> int:
    """The step of run B in which a request computed a position."""
    with open_trace(pair.path_b) as trace:
        columns = (trace.column("rows", name).tolist() for name in ("step", "request", "position"))
        number = list(trace.request_ids()).index(request)
        return next(step for step, owner, at in zip(*columns, strict=True) if (owner, at) == (number, position))


def _lost_token(name: str) -> Case:
    def arms(seed: int) -> tuple[Arm, Arm]:
        requests = victim(seed, 20, 40), neighbour(seed, 6, 30, after=1)
        plain = Arm(model(name), GEMV, requests, lambda: Preempt(VICTIM, 32))
        return plain, replace(plain, fault=lambda: several([Preempt(VICTIM, 32), LostToken(25)]))

    return Case("recompute loses a token", name, arms, planted(CORRUPTION, 0, None, VICTIM), request=VICTIM)


def _rope(name: str) -> Case:
    """One build: plain decoding never rolls back, speculation does. The replay has the fault too."""

    def fault() -> Fault:
        return RopeOffByOne(VICTIM)

    def arms(seed: int) -> tuple[Arm, Arm]:
        request = with_prompt(victim(seed, 20, 48), repetitive_prompt(seed, 20))
        plain = Arm(model(name), GEMV, (request, neighbour(seed)), fault)
        return plain, replace(plain, settings=settings(speculation=SPECULATION))

    oracle = planted(CORRUPTION, 0, None, VICTIM)
    return Case("rope off by one after rollback", name, arms, oracle, build=fault, request=VICTIM)


def _infinite(name: str) -> Case:
    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, fault=lambda: InfiniteLogit(VICTIM, 31, 17))

    oracle = planted(CORRUPTION, layers_of(name), None, VICTIM)
    return Case("NaN or Inf", f"{name} logit", arms, oracle, flips=False, request=VICTIM)


def _infinite_head(name: str) -> Case:
    """The output projection takes a kernel that overflows at one decision, which is then impossible."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), GEMV, (victim(seed), neighbour(seed)))
        return plain, replace(plain, fault=lambda: PathSwitch(VICTIM, 30, "lm_head", INFINITE))

    oracle = planted(
        Verdict.KERNEL_PATH,
        layers_of(name),
        SiteClass.HEAD,
        VICTIM,
        lambda pair: pair.ran_b.fault.struck[0].position + 1,
    )
    return Case("NaN or Inf", f"{name} head overflow", arms, oracle, flips=False, request=VICTIM)


def _overflow(name: str) -> Case:
    """The first chunk's V rows hold NaN from a kernel that overflows; the request fails before its first token."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        plain = Arm(model(name), settings(token_budget=16), (victim(seed, 40, 8),))
        return plain, replace(
            plain, fault=lambda: PathSwitch(VICTIM, 3, "model.layers.0.self_attn.v_proj", OVERFLOWING)
        )

    oracle = planted(Verdict.KERNEL_PATH, 0, SiteClass.QKV, VICTIM)
    return Case("NaN or Inf", f"{name} overflow", arms, oracle, flips=False, request=VICTIM)


def _recording(name: str) -> Case:
    """One build whose attention takes another kernel when somebody wants K/V rows; the plan does not say so."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        light = Arm(model(name), GEMV, (victim(seed, 20, 60), neighbour(seed)), RecordingChanges, Level.LOGITS)
        return light, replace(light, level=Level.KV)

    def verdict_only(pair: Pair) -> Truth:
        assert pair.ran_b.fault.struck
        return Truth(Verdict.RECORDING_CHANGED_THE_RUN)

    return Case("recording changes the run", name, arms, verdict_only, RecordingChanges, flips=False, request=VICTIM)
