"""Drafts with a second model that runs on packed rows, for all requests together, with K/V memory of its own.

Owns what the draft model has computed for each request. Must not know the target's K/V, batches or schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import LogitsError
from engine.kv.contiguous import ContiguousStore
from engine.kv.store import KVStore
from engine.model.packed import PackedModel
from engine.observer import DraftForward
from engine.sampling.processors import process_logits
from engine.sampling.random_numbers import Stream, uniform
from engine.sampling.sampler import choose_token, draw_token, probabilities
from engine.speculative.acceptance import Acceptance
from engine.speculative.drafter import DraftRequest, Proposal

Logits = npt.NDArray[np.float32]


@dataclass(slots=True)
class OpenDraft:
    """One request's proposal under way: its tokens so far, and the distributions that they were drawn from."""

    request: DraftRequest
    history: list[int]
    distributions: list[npt.NDArray[np.float64]] = field(default_factory=list)

    @property
    def proposed_tokens(self) -> int:
        """How many tokens are proposed so far."""
        return len(self.history) - len(self.request.tokens)

    def choose(self, logits: Logits, acceptance: Acceptance) -> None:
        """Append the token that the draft's logits, float32 (vocabulary,), give for the next position."""
        request, position = self.request, len(self.history)
        processed = process_logits(logits, request.sampling, self.history, request.prompt_length)
        if acceptance is Acceptance.EQUALITY or request.sampling.is_greedy:
            token = choose_token(processed, request.sampling, request.request_id, position).token
        else:
            where = f"draft for request {request.request_id!r}, position {position}"
            self.distributions.append(probabilities(processed, request.sampling, where))
            number = uniform(request.sampling.seed, request.request_id, position, Stream.DRAFT)
            token = draw_token(self.distributions[-1], number)
        self.history.append(token)

    def proposal(self) -> Proposal:
        """What was proposed."""
        tokens = tuple(self.history[len(self.request.tokens) :])
        return Proposal(tokens, np.stack(self.distributions) if self.distributions else None)


class ModelDrafter:
    """Proposes a model's own continuation, one packed forward for the i-th token of all requests.

    The first forward also feeds every position whose K/V the draft lacks: the whole prompt at first, later
    the tokens that the target chose in its place. Where its memory is full, a request is proposed less or
    nothing. The drafter owns `packed` and closes it.
    """

    def __init__(
        self,
        packed: PackedModel,
        vocabulary_size: int,
        *,
        name: str = "model",
        store: KVStore | None = None,
        acceptance: Acceptance = Acceptance.EQUALITY,
        capture_kv: bool = False,
    ) -> None:
        """Draft with `packed` for a target whose logits have `vocabulary_size` columns.

        `store` is the draft's own K/V memory, by default one without a bound. `capture_kv` keeps the K/V rows
        of every forward for its record.
        """
        self._packed = packed
        self._vocabulary_size = vocabulary_size
        self._name = name
        self._store: KVStore = ContiguousStore() if store is None else store
        self._acceptance = acceptance
        self._capture_kv = capture_kv
        self._fed: dict[str, list[int]] = {}
        self._forwards: tuple[DraftForward, ...] = ()

    @property
    def name(self) -> str:
        """The name in traces and metrics."""
        return self._name

    @property
    def forwards(self) -> tuple[DraftForward, ...]:
        """Forwards of the latest `propose`, in order."""
        return self._forwards

    def propose(self, requests: Sequence[DraftRequest], step: int = 0) -> list[Proposal]:
        """Propose up to `max_proposal` tokens for every request."""
        drafts = [OpenDraft(request, list(request.tokens)) for request in requests]
        for request in requests:
            self._rewind(request)
        forwards: list[DraftForward] = []
        while ready := [draft for draft in drafts if self._may_go_on(draft, len(forwards))]:
            forwards.append(self._forward(ready, step))
        self._forwards = tuple(forwards)
        return [draft.proposal() for draft in drafts]

    def committed(self, request_id: str, tokens: Sequence[int]) -> None:
        """Nothing to do: the next `propose` compares what was fed with what was committed."""

    def rolled_back(self, request_id: str, length: int) -> None:
        """Drop the draft's rows from position `length` on."""
        fed = self._fed.get(request_id)
        if fed is not None and len(fed) > length:
            self._store.truncate(request_id, length)
            del fed[length:]

    def closed(self, request_id: str) -> None:
        """Free the request's rows."""
        if self._fed.pop(request_id, None) is not None:
            self._store.release(request_id)

    def close(self) -> None:
        """Give the draft model its own classes back."""
        self._packed.close()

    def _rewind(self, request: DraftRequest) -> None:
        """Keep the rows of the common beginning of what was fed and what is committed, but leave one to feed."""
        fed = self._fed.get(request.request_id)
        if fed is None:
            admission = self._store.admit(request.request_id, request.tokens)
            fed = self._fed[request.request_id] = list(request.tokens[: admission.cached_tokens])
        kept = min(_common_length(fed, request.tokens), len(request.tokens) - 1)
        self.rolled_back(request.request_id, kept)

    def _may_go_on(self, draft: OpenDraft, done_forwards: int) -> bool:
        """True when the draft wants another token, was in every forward so far, and has room for its rows."""
        wants_more = done_forwards == draft.proposed_tokens < draft.request.max_proposal
        return wants_more and self._store.grow(draft.request.request_id, len(draft.history))

    def _forward(self, drafts: Sequence[OpenDraft], step: int) -> DraftForward:
        """Feed what each draft lacks, and append the token that each row of logits gives."""
        batch = self._batch(drafts, step)
        result = self._packed.forward(batch, self._store, capture_kv=self._capture_kv)
        self._store.commit_step(batch)
        for draft, segment, row in zip(drafts, batch.segments, result.logits, strict=True):
            self._fed[draft.request.request_id].extend(segment.tokens)
            # Logits that allow no token end the draft: it has been in more forwards than it has tokens.
            with suppress(LogitsError):
                draft.choose(_fit_columns(row, self._vocabulary_size), self._acceptance)
        return DraftForward(batch, result.plan, result.kv_rows)

    def _batch(self, drafts: Sequence[OpenDraft], step: int) -> Batch:
        segments: list[Segment] = []
        first_row = 0
        for draft in drafts:
            first_position = len(self._fed[draft.request.request_id])
            tokens = tuple(draft.history[first_position:])
            kind = SegmentKind.DECODE if len(tokens) == 1 else SegmentKind.PREFILL
            segments.append(Segment(draft.request.request_id, kind, first_position, tokens, first_row, 1))
            first_row += len(tokens)
        return Batch(step, tuple(segments))


def _common_length(fed: Sequence[int], committed: Sequence[int]) -> int:
    if len(fed) <= len(committed) and list(fed) == list(committed[: len(fed)]):
        return len(fed)
    pairs = zip(fed, committed, strict=False)
    differing = (index for index, (left, right) in enumerate(pairs) if left != right)
    return next(differing, min(len(fed), len(committed)))


def _fit_columns(logits: Logits, vocabulary_size: int) -> Logits:
    """Logits over the target's vocabulary: models of one vocabulary pad their heads to different widths."""
    missing = vocabulary_size - logits.size
    if missing > 0:
        return np.concatenate([logits, np.full(missing, -np.inf, np.float32)])
    return logits[:vocabulary_size]
