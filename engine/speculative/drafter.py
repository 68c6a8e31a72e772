"""The contract of a drafter: propose tokens for many requests at once, and follow what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from engine.observer import DraftForward
from engine.request import SamplingParams


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One request that may be drafted for.

    `tokens` are its prompt and committed output; the first proposal stands for position `len(tokens)`.
    At most `max_proposal` tokens are wanted (1 or more). Of `tokens` the first `prompt_length` are prompt,
    which a draft model's penalties need (a wrong number makes proposals worse, never the output).
    """

    request_id: str
    tokens: Sequence[int]
    max_proposal: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    prompt_length: int = 0


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed tokens, possibly none.

    `probabilities`, float64 (proposed tokens, vocabulary), are the distributions that the tokens were drawn
    from. None says that the tokens were not drawn, or that acceptance is to be by equality with the
    target's own choice. Whether a position is proposed at all must not depend on the token drawn for it:
    leaving out unlikely draws would bend the distribution that rejection sampling is to keep.
    """

    tokens: tuple[int, ...] = ()
    probabilities: npt.NDArray[np.float64] | None = None

    def first(self, count: int) -> Proposal:
        """The first `count` proposals."""
        kept = None if self.probabilities is None else self.probabilities[:count]
        return Proposal(self.tokens[:count], kept)


class Drafter(Protocol):
    """Proposes tokens. A step calls `propose` for all requests, then `committed` for each of them."""

    @property
    def name(self) -> str:
        """The name in traces and metrics."""
        ...

    @property
    def forwards(self) -> tuple[DraftForward, ...]:
        """Model forwards of the latest `propose`, in order; empty for a drafter without a model."""
        ...

    def propose(self, requests: Sequence[DraftRequest], step: int = 0) -> list[Proposal]:
        """Propose for every request, in their order; records carry the engine's `step`."""
        ...

    def committed(self, request_id: str, tokens: Sequence[int]) -> None:
        """The step committed `tokens`: accepted proposals first, then the target's own token."""
        ...

    def rolled_back(self, request_id: str, length: int) -> None:
        """Only positions below `length` still hold what the drafter saw."""
        ...

    def closed(self, request_id: str) -> None:
        """The request has ended; forget it. A request that was never drafted for may be closed too."""
        ...
