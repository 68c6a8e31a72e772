"""A request under way: what is committed, what is computed, where it stands. Must not know batches or arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from engine.request import FinishReason, Request
from engine.sampling.stops import StopHit, StopWatch


class Phase(StrEnum):
    """Where a request stands."""

    PENDING = "pending"
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True, eq=False)
class RequestState:
    """`computed_tokens` positions have K/V; those below `recompute_until` had it before a preemption took it.

    `last_turn` counts turns of all requests: who was given rows longer ago has the smaller one.
    """

    request: Request
    order: int
    stop_watch: StopWatch
    phase: Phase = Phase.PENDING
    output: list[int] = field(default_factory=list)
    computed_tokens: int = 0
    recompute_until: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    admission_order: int = 0
    last_scheduled_step: int = -1
    last_turn: int = -1
    queued_s: float = 0.0
    scheduled_s: float | None = None
    first_token_s: float | None = None
    finish_reason: FinishReason | None = None
    detail: str = ""
    text: str = ""
    stop_hit: StopHit | None = None

    @property
    def id(self) -> str:
        """The request's id."""
        return self.request.id

    @property
    def known_tokens(self) -> int:
        """Prompt and committed output."""
        return len(self.request.prompt) + len(self.output)

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and committed output ids."""
        return self.request.prompt + tuple(self.output)

    @property
    def uncomputed_tokens(self) -> int:
        """Known tokens without K/V; 1 means that the next row decides a new token."""
        return self.known_tokens - self.computed_tokens

    @property
    def is_decoding(self) -> bool:
        """True when only the newest output token has to be fed."""
        return bool(self.output) and self.uncomputed_tokens == 1

    @property
    def remaining_output(self) -> int:
        """Tokens that may still be produced."""
        return self.request.max_tokens - len(self.output)

    @property
    def worst_case_tokens(self) -> int:
        """K/V rows that the request can ever need: the last output token is never fed."""
        return len(self.request.prompt) + self.request.max_tokens - 1

    def slice_tokens(self, start: int, stop: int) -> tuple[int, ...]:
        """Known token ids at positions `start .. stop`."""
        prompt = self.request.prompt
        if stop <= len(prompt):
            return prompt[start:stop]
        head = prompt[start:] if start < len(prompt) else ()
        offset = len(prompt)
        return head + tuple(self.output[max(0, start - offset) : stop - offset])
