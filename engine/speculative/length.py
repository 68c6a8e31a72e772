"""How many tokens to propose: frozen states, one a request; `after` gives the next state.

The acceptance-rate and accepted-length rules are those of mini-vllm-rs (benchmarks/speculative_decoding.md at
579f8f4), with its constants as defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from engine.errors import SettingsError
from engine.settings import LONGEST_ADAPTED, ProposalPolicy


class ProposalLength(Protocol):
    """The state of one request's proposal length."""

    def length(self, running_requests: int) -> int:
        """Tokens to propose next, when `running_requests` requests decode in the step; 0 for none."""
        ...

    def after(self, proposed: int, accepted: int) -> ProposalLength:
        """The state after `accepted` of `proposed` tokens were accepted; `proposed` = 0 changes nothing."""
        ...


@dataclass(frozen=True, slots=True)
class FixedLength:
    """Always `tokens`."""

    tokens: int

    def length(self, running_requests: int) -> int:  # noqa: ARG002
        """Tokens to propose next."""
        return self.tokens

    def after(self, proposed: int, accepted: int) -> FixedLength:  # noqa: ARG002
        """Itself."""
        return self


@dataclass(frozen=True, slots=True)
class AcceptanceRateLength:
    """One token less when the latest rate fell below `lower`, one more when it rose above `upper`."""

    tokens: int
    shortest: int = 1
    longest: int = 8
    lower: float = 0.4
    upper: float = 0.8

    def length(self, running_requests: int) -> int:  # noqa: ARG002
        """Tokens to propose next."""
        return self.tokens

    def after(self, proposed: int, accepted: int) -> AcceptanceRateLength:
        """The state after a verification."""
        if proposed == 0:
            return self
        rate = accepted / proposed
        if rate < self.lower:
            return replace(self, tokens=max(self.shortest, self.tokens - 1))
        if rate > self.upper:
            return replace(self, tokens=min(self.longest, self.tokens + 1))
        return self


@dataclass(frozen=True, slots=True)
class AcceptedLength:
    """One more than the moving average of accepted tokens, so that each proposal probes one token further."""

    average: float
    shortest: int = 1
    longest: int = 8
    smoothing: float = 0.2

    def length(self, running_requests: int) -> int:  # noqa: ARG002
        """Tokens to propose next; halves are rounded up."""
        return min(self.longest, max(self.shortest, int(self.average + 0.5) + 1))

    def after(self, proposed: int, accepted: int) -> AcceptedLength:
        """The state after a verification."""
        if proposed == 0:
            return self
        return replace(self, average=self.smoothing * accepted + (1 - self.smoothing) * self.average)


@dataclass(frozen=True, slots=True)
class LengthUpTo:
    """A row of a table: `tokens` while at most `requests` decode."""

    requests: int
    tokens: int


@dataclass(frozen=True, slots=True)
class BatchSizeLength:
    """By a table in rising order of requests; no proposal beyond its end."""

    table: tuple[LengthUpTo, ...]

    def __post_init__(self) -> None:
        """Refuse a table out of order."""
        requests = [row.requests for row in self.table]
        if requests != sorted(set(requests)) or any(row.tokens < 0 for row in self.table):
            raise SettingsError(
                f"proposal length by batch size: {self.table} must rise in requests, with no length below 0."
            )

    def length(self, running_requests: int) -> int:
        """Tokens to propose next."""
        return next((row.tokens for row in self.table if running_requests <= row.requests), 0)

    def after(self, proposed: int, accepted: int) -> BatchSizeLength:  # noqa: ARG002
        """Itself."""
        return self


def first_length(policy: ProposalPolicy, tokens: int) -> ProposalLength:
    """The state that a request starts with under `policy`, proposing `tokens` at first.

    `batch-size` halves the length whenever the number of requests doubles, so that a step's proposals stay
    about as many as for one request.
    """
    if policy is ProposalPolicy.ACCEPTANCE_RATE:
        return AcceptanceRateLength(tokens, longest=max(LONGEST_ADAPTED, tokens))
    if policy is ProposalPolicy.ACCEPTED_LENGTH:
        return AcceptedLength(average=float(tokens - 1), longest=max(LONGEST_ADAPTED, tokens))
    if policy is ProposalPolicy.BATCH_SIZE:
        return BatchSizeLength(_halving_table(tokens))
    return FixedLength(tokens)


def _halving_table(tokens: int) -> tuple[LengthUpTo, ...]:
    return tuple(LengthUpTo(1 << i, tokens >> i) for i in range(tokens.bit_length()))
