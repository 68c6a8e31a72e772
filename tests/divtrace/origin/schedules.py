"""A toy scheduler over the toy engine: chunking, limits, arrivals, speculation, preemption, prefix reuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.batch import SegmentKind
from engine.observer import ReusedRow
from engine.request import Request
from tests.divtrace.origin.worlds import Flow, Version, World

BLOCK = 4


@dataclass(frozen=True)
class Schedule:
    """How one arm runs. `preempt_every` preempts the last running request every so many steps (0: never)."""

    max_active: int = 4
    chunk: int = 64
    speculate: int = 0
    preempt_every: int = 0
    reuse_prefix: bool = False
    arrivals: Mapping[str, int] = field(default_factory=dict)


def serve(world: World, requests: list[Request], schedule: Schedule) -> World:
    """Run all requests to their ends."""
    waiting = sorted(requests, key=lambda r: schedule.arrivals.get(r.id, 0))
    queue: list[str] = []
    running: list[str] = []
    finished: list[str] = []
    for number in range(400):
        while waiting and (schedule.arrivals.get(waiting[0].id, 0) <= number or not (queue or running)):
            world.submit(waiting[0])
            queue.append(waiting.pop(0).id)
        if not (queue or running):
            break
        if (
            schedule.preempt_every
            and number % schedule.preempt_every == schedule.preempt_every - 1
            and len(running) > 1
        ):
            victim = running.pop()
            world.flows[victim].memory.clear()
            world.flows[victim].recomputing = True
            queue.insert(0, victim)
        reused: list[ReusedRow] = []
        while queue and len(running) < schedule.max_active:
            name = queue.pop(0)
            if schedule.reuse_prefix:
                reused.extend(_take_prefix(world, name))
            running.append(name)
        parts = [_part(world.flows[name], name, schedule) for name in running]
        world.step(parts, reused)
        for name in list(running):
            flow = world.flows[name]
            if flow.output_tokens >= flow.request.max_tokens:
                running.remove(name)
                finished.append(name)
                world.finish(name)
    assert len(finished) == len(requests)
    return world


def _part(flow: Flow, name: str, schedule: Schedule) -> tuple[str, SegmentKind, tuple[int, ...], int]:
    start = len(flow.memory)
    known = len(flow.tokens)
    if start < known - 1 or not flow.decided:
        stop = min(known, start + schedule.chunk)
        kind = SegmentKind.RECOMPUTE if flow.recomputing else SegmentKind.PREFILL
        wanted = int(stop == known)
        if wanted:
            flow.recomputing = False
        return name, kind, tuple(flow.tokens[start:stop]), wanted
    left = flow.request.max_tokens - flow.output_tokens
    proposals = min(schedule.speculate, left - 1)
    if proposals <= 0:
        return name, SegmentKind.DECODE, (flow.tokens[-1],), 1
    return name, SegmentKind.VERIFY, (flow.tokens[-1], *_proposals(flow, proposals)), proposals + 1


def _proposals(flow: Flow, count: int) -> list[int]:
    """Right most of the time: every third position is guessed wrong."""
    first = len(flow.tokens)
    right = [abs(hash((flow.request.prompt[-1], position))) % 14 + 2 for position in range(first, first + count)]
    return [0 if (first + index) % 3 == 0 else token for index, token in enumerate(right)]


def _take_prefix(world: World, name: str) -> tuple[ReusedRow, ...]:
    """Whole blocks that other memories hold for the same tokens, each from a holder of its own; never all tokens."""
    tokens = world.flows[name].tokens
    shared: list[Version] = []
    while len(shared) + BLOCK < len(tokens):
        stop = len(shared) + BLOCK
        holders = [
            flow.memory
            for other, flow in world.flows.items()
            if other != name and len(flow.memory) >= stop and flow.tokens[:stop] == tokens[:stop]
        ]
        if not holders:
            break
        shared.extend(holders[(stop // BLOCK) % len(holders)][len(shared) : stop])
    return world.reuse(name, shared) if shared else ()
