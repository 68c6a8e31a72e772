"""What a caller asks for and what comes back. Must not know how requests are scheduled or computed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class FinishReason(StrEnum):
    """Why a request stopped producing tokens."""

    LENGTH = "length"
    STOP = "stop"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from its logits. The default is greedy with the lowest id winning a tie.

    Random numbers are a pure function of (seed, request, position), so they do not depend on the batch.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        """True when no random number is drawn."""
        return self.temperature == 0.0

    @property
    def leaves_logits_unchanged(self) -> bool:
        """True when processed logits equal raw logits for every history."""
        return (
            self.repetition_penalty == 1.0
            and self.presence_penalty == 0.0
            and self.frequency_penalty == 0.0
            and not self.logit_bias
        )


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request enters the waiting queue: at a step, or after another has committed some tokens.

    `after_request` with `after_tokens` = 1 means "submitted when that request's first token was streamed".
    """

    at_step: int = 0
    after_request: str | None = None
    after_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """One prompt to complete. `id` is unique within a run; `prompt` holds token ids and is not empty.

    `sample_of` names a request with the same prompt: with a prefix cache this one starts on the K/V rows that the
    other computed for it, to the last row and not the last block, as long as the other runs.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    priority: int = 0
    arrival: Arrival = field(default_factory=Arrival)
    cancel_at_step: int | None = None
    timeout_s: float | None = None
    sample_of: str | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """What one request produced. Times are seconds on the engine's monotonic clock, None where not reached.

    `tokens` include the token that ended the output; `text` is cut where a stop token or string begins.
    """

    request_id: str
    tokens: tuple[int, ...]
    finish_reason: FinishReason
    queued_s: float
    scheduled_s: float | None
    first_token_s: float | None
    finished_s: float
    detail: str = ""
    text: str = ""
