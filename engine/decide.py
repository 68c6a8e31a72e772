"""From logits rows to committed tokens, one segment at a time. Must not know K/V, schedules or models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.observer import Draft, SampledRow
from engine.sampling.processors import process_rows
from engine.speculative.drafter import Proposal
from engine.speculative.verify import Verification, verify
from engine.state import RequestState

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ForcedTokens:
    """Output tokens that a replay commits whatever the logits say, by request id; decisions are still recorded."""

    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def at(self, request_id: str, output_index: int) -> int | None:
        """The forced token at an output index, None when that decision is free."""
        outputs = self.outputs.get(request_id, ())
        return outputs[output_index] if output_index < len(outputs) else None


@dataclass(frozen=True, slots=True)
class Decision:
    """What one segment committed: `tokens` in order, and the rows behind them.

    The K/V of all committed tokens but the last is valid afterwards; rows of rejected proposals are rolled back.
    `failure` says why no token can be chosen behind `tokens`: the request cannot go on. None when it can.
    """

    request_id: str
    tokens: tuple[int, ...]
    sampled: tuple[SampledRow, ...]
    processed: Logits
    draft: Draft | None = None
    failure: str | None = None


def decide(
    batch: Batch,
    state: RequestState,
    logits: Logits,
    head_row: int,
    proposal: Proposal,
    drafter: str,
    forced: ForcedTokens,
) -> Decision:
    """Choose the tokens that one segment's logits decide: one, or a verification's accepted run.

    Args:
        batch: the step's batch (for the packed rows of the decisions).
        state: the segment's request before this step's commit.
        logits: float32 (wanted rows, vocabulary), the segment's rows.
        head_row: index of the first of them among the step's logits rows.
        proposal: what was proposed; empty outside verification.
        drafter: name of who proposed it.
        forced: tokens that a replay pins.
    """
    request = state.request
    first_position = state.known_tokens
    history = () if request.sampling.leaves_logits_unchanged else state.tokens
    processed = process_rows(logits, request.sampling, history, len(request.prompt), proposal.tokens)
    verification = verify(processed, proposal, request.sampling, request.id, first_position)
    committed, failure = _committed(state, verification, proposal, forced)
    kept = _until_stop(state, committed)
    sampled = tuple(
        SampledRow(
            request_id=request.id,
            position=first_position + index,
            row=int(batch.wanted_rows[head_row + index]),
            head_row=head_row + index,
            chosen_token=token,
            committed=index < len(kept),
            random_number=verification.random_numbers[index],
            pinned_token=kept[index] if index < len(kept) and kept[index] != token else None,
        )
        for index, token in enumerate(verification.chosen_tokens)
    )
    draft = _draft(request.id, first_position, proposal, kept, drafter) if proposal.tokens else None
    return Decision(request.id, kept, sampled, processed, draft, failure if kept == committed else None)


def _committed(
    state: RequestState, verification: Verification, proposal: Proposal, forced: ForcedTokens
) -> tuple[tuple[int, ...], str | None]:
    """The tokens to commit, and why no token can follow them where none can. A pinned token needs no logits."""
    if forced.at(state.id, len(state.output)) is None:
        return verification.committed, verification.failure
    committed: list[int] = []
    for index, (chosen, failure) in enumerate(zip(verification.chosen_tokens, verification.failures, strict=True)):
        pinned = forced.at(state.id, len(state.output) + index)
        if pinned is None and failure is not None:
            return tuple(committed), failure
        committed.append(chosen if pinned is None else pinned)
        if index >= len(proposal.tokens) or proposal.tokens[index] != committed[-1]:
            break
    return tuple(committed), None


def _until_stop(state: RequestState, committed: tuple[int, ...]) -> tuple[int, ...]:
    """Feed the tokens to the request's stop watch; what follows a stop is not committed."""
    for index, token in enumerate(committed):
        emitted = state.stop_watch.push(token)
        state.text += emitted.text
        if emitted.hit is not None:
            state.stop_hit = emitted.hit
            return committed[: index + 1]
    return committed


def _draft(request_id: str, first_position: int, proposal: Proposal, committed: tuple[int, ...], drafter: str) -> Draft:
    accepted = 0
    for proposed, token in zip(proposal.tokens, committed, strict=False):
        if proposed != token:
            break
        accepted += 1
    next_token = committed[accepted] if accepted < len(committed) else None
    return Draft(request_id, first_position, proposal.tokens, accepted, next_token, drafter)
