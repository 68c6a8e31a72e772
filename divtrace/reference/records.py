"""What float64 says about a decision, JSON-ready."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from divtrace.divergence.records import Token


class Agreement(StrEnum):
    """Whose choice float64 makes."""

    A = "A"
    B = "B"
    BOTH = "both"
    NEITHER = "neither"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class LogitError:
    """One logit (after penalties and bias) in float64 and in both runs; errors are run minus float64.

    `ulps` count float32 steps at the float64 value. None where the token is not among a run's recorded top-k.
    """

    token: Token
    reference: float
    a: float | None
    b: float | None
    error_a: float | None
    error_b: float | None
    ulps_a: float | None
    ulps_b: float | None


@dataclass(frozen=True, slots=True)
class ReferenceResult:
    """The decision in float64. `agrees_with` is UNKNOWN where `unsupported` says why nothing was computed.

    `logits` are those of run A's token and run B's (or the runner-up); `margin` is the first minus the second. A
    sampled request has no one right choice: there `agrees_with` compares what would be chosen with the recorded
    random number.
    """

    agrees_with: Agreement
    choice: Token | None
    logits: tuple[LogitError, ...]
    margin: float | None
    tokens: int
    unsupported: str = ""

    def total_error(self, run: str) -> float | None:
        """Sum of a run's absolute errors over the two logits; None where one is not recorded."""
        errors = [entry.error_a if run == "A" else entry.error_b for entry in self.logits]
        known = [abs(error) for error in errors if error is not None]
        return sum(known) if known and len(known) == len(errors) else None
