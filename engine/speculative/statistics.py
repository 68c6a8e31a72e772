"""How speculation went for one request, in the schema of vLLM's `speculative_decoding_stats`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.errors import EngineError


@dataclass(frozen=True, slots=True)
class SpeculationSummary:
    """A request's speculation in numbers.

    A speculative step is one that verified at least one proposal. `mean_acceptance_length` is 1 + accepted
    / steps: what a step commits with the bonus token. Histograms map a number of accepted tokens to steps;
    position i of `acceptance_rate_per_position` is the share of steps that proposed more than i tokens and
    accepted token i.
    """

    num_spec_steps: int
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    mean_acceptance_length: float
    draft_acceptance_rate: float
    acceptance_histogram: Mapping[int, int]
    acceptance_histogram_by_draft_length: Mapping[int, Mapping[int, int]]
    accepted_tokens_per_position: tuple[int, ...]
    acceptance_rate_per_position: tuple[float, ...]

    def as_json(self) -> dict[str, Any]:
        """JSON-ready, histograms with text keys as JSON has them."""
        return {
            "num_spec_steps": self.num_spec_steps,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_draft_tokens": self.num_accepted_draft_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_histogram": _text_keys(self.acceptance_histogram),
            "acceptance_histogram_by_draft_length": {
                str(length): _text_keys(steps) for length, steps in self.acceptance_histogram_by_draft_length.items()
            },
            "accepted_tokens_per_position": list(self.accepted_tokens_per_position),
            "acceptance_rate_per_position": list(self.acceptance_rate_per_position),
        }


@dataclass(slots=True)
class SpeculationStatistics:
    """Counts one request's speculative steps by outcome, so memory does not grow with them."""

    _steps: Counter[tuple[int, int]] = field(default_factory=Counter)

    def record(self, drafted: int, accepted: int) -> None:
        """Count a step that accepted `accepted` of `drafted` proposals; a step without proposals is none.

        Raises:
            EngineError: more were accepted than drafted.
        """
        if not 0 <= accepted <= drafted:
            raise EngineError(f"speculation: {accepted} accepted of {drafted} drafted tokens is impossible.")
        if drafted > 0:
            self._steps[(drafted, accepted)] += 1

    def summary(self) -> SpeculationSummary:
        """The numbers so far."""
        steps = self._steps.total()
        drafted = sum(length * count for (length, _), count in self._steps.items())
        accepted = sum(taken * count for (_, taken), count in self._steps.items())
        reached = self._steps_per_position(of_accepted=True)
        tried = self._steps_per_position(of_accepted=False)
        return SpeculationSummary(
            num_spec_steps=steps,
            num_draft_tokens=drafted,
            num_accepted_draft_tokens=accepted,
            mean_acceptance_length=1.0 + accepted / steps if steps else 1.0,
            draft_acceptance_rate=accepted / drafted if drafted else 0.0,
            acceptance_histogram=self._histogram(None),
            acceptance_histogram_by_draft_length={
                length: self._histogram(length) for length in sorted({length for length, _ in self._steps})
            },
            accepted_tokens_per_position=reached,
            acceptance_rate_per_position=tuple(hit / all_ for hit, all_ in zip(reached, tried, strict=True)),
        )

    def _histogram(self, draft_length: int | None) -> dict[int, int]:
        counts: Counter[int] = Counter()
        for (length, taken), count in self._steps.items():
            if draft_length in (None, length):
                counts[taken] += count
        return dict(sorted(counts.items()))

    def _steps_per_position(self, of_accepted: bool) -> tuple[int, ...]:
        """Steps whose accepted (else drafted) tokens go beyond each position, up to the longest draft."""
        longest = max((length for length, _ in self._steps), default=0)
        return tuple(
            sum(
                count for (length, taken), count in self._steps.items() if (taken if of_accepted else length) > position
            )
            for position in range(longest)
        )


def _text_keys(histogram: Mapping[int, int]) -> dict[str, int]:
    return {str(key): value for key, value in histogram.items()}
