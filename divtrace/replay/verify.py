"""Holds a replay against the trace that it was made from, bit for bit. Reads traces; must not run anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divtrace.replay.choices import repeatable_choices
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level


@dataclass(frozen=True, slots=True)
class Reproduction:
    """How far a replay equals its trace. `first_step` is the first step that differs, None when all are equal.

    `compared` names what was compared; `what` says which of it differed first.
    """

    steps: int
    rows: int
    decisions: int
    compared: tuple[str, ...]
    first_step: int | None
    what: str

    @property
    def is_equal(self) -> bool:
        """True when nothing that was compared differed."""
        return self.first_step is None


def compare_replay(original: Trace, replayed: Trace) -> Reproduction:
    """Compare decisions, logits hashes and K/V digests of all steps that the replay ran.

    Choices that were made by rejection sampling are left out: a playback cannot make them.
    """
    steps = replayed.step_count
    compared = ["chosen tokens"]
    differing: list[tuple[int, str]] = []
    level = original.header.level
    columns = [("sampled", "chosen", "chosen tokens")]
    if level.includes(Level.LOGITS):
        columns.append(("sampled", "logits_hash", "logits"))
        compared.append("logits of every decision")
    if level.includes(Level.KV):
        columns.append(("rows", "digest", "K/V rows"))
        compared.append("K and V of every layer and row")
    for table, column, what in columns:
        step = _first_differing_step(original, replayed, table, column, steps)
        if step is not None:
            differing.append((step, what))
    first = min(differing, default=None)
    return Reproduction(
        steps=steps,
        rows=replayed.length("rows"),
        decisions=replayed.length("sampled"),
        compared=tuple(compared),
        first_step=None if first is None else first[0],
        what="" if first is None else first[1],
    )


def _first_differing_step(original: Trace, replayed: Trace, table: str, column: str, steps: int) -> int | None:
    step_of = original.column(table, "step")
    kept = step_of < steps
    ours, theirs = original.column(table, column)[kept], replayed.column(table, column)
    if len(ours) != len(theirs):
        return 0
    asked = repeatable_choices(original)[kept] if column == "chosen" else np.ones(len(ours), np.bool_)
    differs = np.flatnonzero((ours != theirs) & asked)
    return None if differs.size == 0 else int(step_of[kept][differs[0]])
