"""Decides which proposals the target accepts. Pure: logits, a proposal and parameters in, a record out.

Two rules. By equality: at each row the target chooses as it would without speculation, with the same random
number, and a proposal is accepted when it is that very token. Whatever was proposed, the output is then
token for token that of plain decoding; for tokens that were not drawn, a proposal x is accepted with
probability p(x), which is what rejection sampling gives for a point mass. By rejection, when the proposal
brings the distributions q that it was drawn from: accept x with probability min(1, p(x) / q(x)), else draw
from what p has over q (Leviathan, Kalman, Matias 2023, "Fast inference from transformers via speculative
decoding"; Chen et al. 2023). That accepts more often and keeps the distribution, but not the tokens, of
plain sampling.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError, LogitsError
from engine.request import SamplingParams
from engine.sampling.greedy import largest_number
from engine.sampling.random_numbers import Stream, uniform
from engine.sampling.sampler import Choice, choose_token, draw_token, probabilities
from engine.speculative.drafter import Proposal

Logits = npt.NDArray[np.float32]
Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of a proposal. Tuples with one entry a logits row say what the target chose there.

    `committed` are the accepted proposals and then `next_token`, where there is one. Rows behind a
    rejection carry what plain decoding would have chosen after the rejected tokens; nothing of it is
    committed. A random number is None where the choice was greedy; under rejection it is the number of the
    acceptance test, or for the replacing token the number that drew it.

    `failures` say why no token can be chosen in a row, None where one can. The chosen token of such a row is its
    largest number's, for the record alone; it is never committed. `failure` is that of the row that had to decide.
    """

    accepted_tokens: int
    next_token: int | None
    committed: tuple[int, ...]
    chosen_tokens: tuple[int, ...]
    random_numbers: tuple[float | None, ...]
    failures: tuple[str | None, ...]

    @property
    def failure(self) -> str | None:
        """Why the output cannot go on behind the accepted proposals, None when it can."""
        return self.failures[self.accepted_tokens] if self.accepted_tokens < len(self.failures) else None


@dataclass(frozen=True, slots=True)
class Place:
    """What is decided: one position of one request."""

    params: SamplingParams
    request_id: str
    position: int

    def __str__(self) -> str:
        return f"request {self.request_id!r}, position {self.position}"

    def uniform(self, stream: Stream) -> float:
        """This place's random number of a stream."""
        return uniform(self.params.seed, self.request_id, self.position, stream)


@dataclass(frozen=True, slots=True)
class RowDecision:
    """A row's choice, whether it accepts the proposal that stands there, and why there is no choice at all."""

    choice: Choice
    accepted: bool
    failure: str | None = None


def verify(
    processed: Logits,
    proposal: Proposal,
    params: SamplingParams,
    request_id: str,
    first_position: int,
) -> Verification:
    """Verify a proposal whose first token stands for `first_position`.

    Args:
        processed: processed logits (see `process_rows`), float32, (rows, vocabulary). Row i decides position
            `first_position` + i, having seen the first i proposals. One row more than proposals gives a
            bonus token when all are accepted; as many rows as proposals give none.
        proposal: what was proposed.
        params: the request's parameters.
        request_id: the request, for its random numbers and in errors.
        first_position: index of the first decided token, prompt and output together.

    Raises:
        EngineError: rows and proposal do not fit each other.
    """
    _check_shapes(processed, proposal, request_id)
    decisions: list[RowDecision] = []
    accepted_tokens = 0
    for index, row in enumerate(processed):
        is_judged = index < len(proposal.tokens) and accepted_tokens == index
        place = Place(params, request_id, first_position + index)
        decisions.append(_decide_row(row, proposal, index if is_judged else None, place))
        accepted_tokens += decisions[-1].accepted
    chosen = tuple(decision.choice.token for decision in decisions)
    failures = tuple(decision.failure for decision in decisions)
    goes_on = accepted_tokens < len(chosen) and failures[accepted_tokens] is None
    return Verification(
        accepted_tokens=accepted_tokens,
        next_token=chosen[accepted_tokens] if goes_on else None,
        committed=chosen[: accepted_tokens + goes_on],
        chosen_tokens=chosen,
        random_numbers=tuple(decision.choice.random_number for decision in decisions),
        failures=failures,
    )


def _decide_row(row: Logits, proposal: Proposal, judged: int | None, place: Place) -> RowDecision:
    """Decide one row; `judged` is the proposal that stands there, None behind a rejection and for the bonus token."""
    try:
        if judged is not None:
            return _judge(row, proposal, judged, place)
        return RowDecision(choose_token(row, place.params, place.request_id, place.position), False)
    except LogitsError as error:
        return RowDecision(Choice(largest_number(row), None), False, str(error))


def _judge(row: Logits, proposal: Proposal, index: int, place: Place) -> RowDecision:
    """Decide on proposal `index`, given that all before it were accepted."""
    proposed = proposal.tokens[index]
    if proposal.probabilities is not None and not place.params.is_greedy:
        return _judge_by_rejection(row, proposed, proposal.probabilities[index], place)
    choice = choose_token(row, place.params, place.request_id, place.position)
    return RowDecision(choice, choice.token == proposed)


def _judge_by_rejection(row: Logits, proposed: int, drafted: Probabilities, place: Place) -> RowDecision:
    """Keep the target's distribution p although `proposed` was drawn from `drafted` (q)."""
    if not drafted[proposed] > 0.0:
        raise EngineError(
            f"{place}: token {proposed} was proposed with probability {drafted[proposed]}; "
            "a drafter must give the distribution that it drew from."
        )
    target = probabilities(row, place.params, str(place))
    test = place.uniform(Stream.ACCEPT)
    if test * drafted[proposed] < target[proposed]:
        return RowDecision(Choice(proposed, test), True)
    draw = place.uniform(Stream.RESIDUAL)
    return RowDecision(Choice(draw_token(residual(target, drafted), draw), draw), False)


def residual(target: Probabilities, drafted: Probabilities) -> Probabilities:
    """What the target's distribution has over the draft's, not normalized; all of it if that is nothing.

    Both float64, shape (vocabulary,). The second case needs rounding: equal distributions reject nothing.
    """
    excess = np.maximum(target - drafted, 0.0)
    return excess if excess.any() else target


def _check_shapes(processed: Logits, proposal: Proposal, request_id: str) -> None:
    rows, vocabulary = processed.shape
    proposed = len(proposal.tokens)
    if rows not in (proposed, proposed + 1) or rows == 0:
        raise EngineError(
            f"request {request_id!r}: {proposed} proposals need {proposed} or {proposed + 1} logits rows, "
            f"but there are {rows}."
        )
    if proposal.probabilities is not None and proposal.probabilities.shape != (proposed, vocabulary):
        raise EngineError(
            f"request {request_id!r}: the draft's probabilities have shape {proposal.probabilities.shape}, "
            f"but {(proposed, vocabulary)} is needed; draft and target must share one vocabulary."
        )
