"""Faults behind the logits: ties, penalties, sampler, acceptance. They change which token is committed, never K/V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np

from engine import decide as deciding
from engine.batch import Batch
from engine.decide import Decision
from engine.engine import Engine
from engine.request import SamplingParams
from engine.sampling import sampler
from engine.scheduling.plan import StepPlan
from engine.speculative.verify import Verification
from tests.faults.build import Fault, Struck

Decisions = Callable[[], list[Decision]]


def last_greedy_token(logits: np.ndarray, where: str = "logits") -> int:
    """The highest id among the highest logits."""
    return int(logits.size - 1 - logits[::-1].argmax())


@dataclass
class LastWins(Fault):
    """The highest id wins a tie."""

    def decide(self, engine: Engine, batch: Batch, decisions: Decisions) -> list[Decision]:
        with patch.object(sampler, "greedy_token", last_greedy_token):
            return decisions()


@dataclass
class LatePenalties(Fault):
    """Penalties do not see the newest token yet."""

    def decide(self, engine: Engine, batch: Batch, decisions: Decisions) -> list[Decision]:
        honest = deciding.process_rows

        def late(rows: Any, params: Any, history: Any, prompt_length: int, proposed: Any) -> Any:
            return honest(rows, params, history[:-1], min(prompt_length, len(history) - 1), proposed)

        with patch.object(deciding, "process_rows", late):
            return decisions()


@dataclass
class _Verifying(Fault):
    """Replaces the verification of one request from `from_position` on."""

    request: str
    from_position: int = 0

    def verify(self, engine: Engine, honest: Any, rows: Any, proposal: Any, params: Any, where: Any) -> Verification:
        raise NotImplementedError

    def decide(self, engine: Engine, batch: Batch, decisions: Decisions) -> list[Decision]:
        honest = deciding.verify

        def verify(processed: Any, proposal: Any, params: Any, request: str, position: int) -> Verification:
            right: Verification = honest(processed, proposal, params, request, position)
            if request != self.request or position < self.from_position:
                return right
            made = self.verify(engine, honest, processed, proposal, params, (request, position))
            if made.committed != right.committed:
                first = next(i for i, (x, y) in enumerate(zip(made.committed, right.committed, strict=False)) if x != y)
                self.struck.append(Struck(batch.step, request, position + first))
            return made

        with patch.object(deciding, "verify", verify):
            return decisions()


@dataclass
class OtherSampler(_Verifying):
    """The request is sampled with the parameters of `other`."""

    other: str = ""
    taken: SamplingParams | None = None

    def planned(self, engine: Engine, plan: StepPlan) -> StepPlan:
        if self.other in engine.states:
            self.taken = engine.states[self.other].request.sampling
        return plan

    def verify(self, engine: Engine, honest: Any, rows: Any, proposal: Any, params: Any, where: Any) -> Verification:
        return honest(rows, proposal, self.taken or params, *where)  # type: ignore[no-any-return]


@dataclass
class DrawsAtZero(_Verifying):
    """A greedy request takes the branch that draws a random number."""

    def verify(self, engine: Engine, honest: Any, rows: Any, proposal: Any, params: Any, where: Any) -> Verification:
        return honest(rows, proposal, replace(params, temperature=1.0), *where)  # type: ignore[no-any-return]


@dataclass
class UnverifiedDraft(_Verifying):
    """The first proposal is committed whatever the target says."""

    def verify(self, engine: Engine, honest: Any, rows: Any, proposal: Any, params: Any, where: Any) -> Verification:
        right: Verification = honest(rows, proposal, params, *where)
        if not proposal.tokens or right.accepted_tokens or right.chosen_tokens[0] == proposal.tokens[0]:
            return right
        rest = right.chosen_tokens[1:2]
        committed = (proposal.tokens[0], *rest)
        return replace(
            right,
            accepted_tokens=1,
            next_token=rest[0] if rest else None,
            committed=committed,
            chosen_tokens=(proposal.tokens[0], *right.chosen_tokens[1:]),
        )
