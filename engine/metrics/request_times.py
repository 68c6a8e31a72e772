"""When things happened to one request, and the latencies that follow. Must not know where numbers are shown."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestTimes:
    """Moments of one request, in seconds on one monotonic clock; None where not reached.

    A burst is what one step committed: one token, or a verification's accepted run and the token after it.
    """

    prompt_tokens: int
    max_tokens: int
    queued_s: float
    scheduled_s: float | None = None
    burst_times_s: list[float] = field(default_factory=list)
    burst_tokens: list[int] = field(default_factory=list)
    finished_s: float | None = None
    preemptions: int = 0

    def committed(self, tokens: int, now_s: float) -> None:
        """A step committed `tokens` tokens."""
        self.burst_times_s.append(now_s)
        self.burst_tokens.append(tokens)

    @property
    def generation_tokens(self) -> int:
        """Tokens committed so far."""
        return sum(self.burst_tokens)

    @property
    def time_to_first_token_s(self) -> float | None:
        """From entering the queue to the first committed token."""
        return self.burst_times_s[0] - self.queued_s if self.burst_times_s else None

    @property
    def queue_time_s(self) -> float | None:
        """From entering the queue to the first step with rows of this request."""
        return None if self.scheduled_s is None else self.scheduled_s - self.queued_s

    @property
    def end_to_end_s(self) -> float | None:
        """From entering the queue to the end, whatever the end was."""
        return None if self.finished_s is None else self.finished_s - self.queued_s

    @property
    def prefill_time_s(self) -> float | None:
        """From the first rows to the first token."""
        if self.scheduled_s is None or not self.burst_times_s:
            return None
        return self.burst_times_s[0] - self.scheduled_s

    @property
    def decode_time_s(self) -> float | None:
        """From the first token to the last."""
        return self.burst_times_s[-1] - self.burst_times_s[0] if self.burst_times_s else None

    @property
    def inference_time_s(self) -> float | None:
        """From the first rows to the last token."""
        if self.scheduled_s is None or not self.burst_times_s:
            return None
        return self.burst_times_s[-1] - self.scheduled_s

    @property
    def burst_gaps_s(self) -> list[float]:
        """Inter-token latency as a stream's reader sees it: the time between two bursts."""
        return [after - before for before, after in zip(self.burst_times_s, self.burst_times_s[1:], strict=False)]

    @property
    def token_gaps_s(self) -> list[float]:
        """Inter-token latency with each gap divided evenly among the tokens of the burst that ended it."""
        gaps = zip(self.burst_gaps_s, self.burst_tokens[1:], strict=True)
        return [gap / tokens for gap, tokens in gaps for _ in range(tokens)]

    @property
    def time_per_output_token_s(self) -> float | None:
        """Decode time by tokens after the first; None with fewer than two tokens."""
        if self.decode_time_s is None or self.generation_tokens < 2:
            return None
        return self.decode_time_s / (self.generation_tokens - 1)
