"""Why requests waited: for a slot, for rows of the step, or for K/V blocks. Pure functions over step records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum

from engine.bench.meter import StepRecord
from engine.settings import AdmissionPolicy, EngineSettings


class WaitReason(StrEnum):
    """What the first waiting request of a step lacked."""

    NONE = "nobody waits"
    GROUP = "the group is closed"
    SLOTS = "slots"
    ROWS = "rows of the step"
    BLOCKS = "KV blocks"


def wait_reason(step: StepRecord, settings: EngineSettings) -> WaitReason:
    """Why somebody still waits after `step` was planned.

    Slots and rows are compute: the step is as full as it may be. What is neither is memory: there was a slot and there
    were rows left, so the admission rule found no blocks (or a preemption had just shown that there are none).
    """
    if step.waiting == 0:
        return WaitReason.NONE
    if step.running >= settings.max_active:
        return WaitReason.SLOTS
    if settings.admission is AdmissionPolicy.STATIC:
        return WaitReason.GROUP
    if step.preempted == 0 and step.packed_rows >= settings.token_budget:
        return WaitReason.ROWS
    return WaitReason.BLOCKS


def waiting_shares(steps: Sequence[StepRecord], settings: EngineSettings) -> dict[WaitReason, float]:
    """Share of request-steps spent waiting, by reason: each step counts as often as requests wait in it; sums to 1."""
    counts: Counter[WaitReason] = Counter()
    for step in steps:
        counts[wait_reason(step, settings)] += step.waiting
    total = counts.total()
    return {reason: counts[reason] / total if total else 0.0 for reason in WaitReason if reason is not WaitReason.NONE}


def mean_use_of_blocks(steps: Sequence[StepRecord]) -> float:
    """Mean share of K/V blocks in use, 0 to 1."""
    shares = [step.blocks_used / step.blocks_total for step in steps if step.blocks_total]
    return sum(shares) / len(shares) if shares else 0.0


def verdict(shares: dict[WaitReason, float]) -> str:
    """One word for a table: what most of the waiting was for."""
    reason, share = max(shares.items(), key=lambda item: item[1])
    return f"{reason.value} ({100 * share:.0f} %)" if share > 0 else "nobody waited"
