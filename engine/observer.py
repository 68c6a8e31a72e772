"""What the engine tells its watcher: one immutable event per step, and a protocol to receive it.

Owns the records. Must not know who listens or what is stored. Every array in an event is read-only by
contract: an observer copies what it keeps, because K/V arrays may be views of memory that a later step reuses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from engine.batch import Batch
from engine.request import Completion, Request


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """One site's kernel path in one step, with everything the selector saw.

    `operation` is `linear`, `head`, `expert` or `attention`. For linears `rows`, `input_size` (K) and `output_size` (N)
    describe the call. For attention `rows` is the packed row count; query and key lengths follow from the
    segments, and the batch-wide maxima stand in the step. `decided_by` is the rule (`threshold:4`, `native`,
    `override`). `bits` and `group_size` are 0 for dense weights; `model` is `target` or `draft`.
    """

    site: str
    operation: str
    path: str
    decided_by: str
    rows: int
    input_size: int
    output_size: int
    dtype: str
    bits: int
    group_size: int
    model: str = "target"


Plan = tuple[SiteChoice, ...]


@dataclass(frozen=True, slots=True)
class SampledRow:
    """One decision: the token at `position` was chosen from logits row `head_row` (packed row `row`).

    `committed` is False for verification rows behind a rejected draft token: their logits were computed and
    then dropped. It is False too where no token can be chosen (NaN, +Inf, all -Inf): the request ends there with
    reason `error`, and `chosen_token` is that of the largest number. `random_number` is the uniform draw in
    [0, 1), None when the choice was greedy or failed.
    """

    request_id: str
    position: int
    row: int
    head_row: int
    chosen_token: int
    committed: bool = True
    random_number: float | None = None
    pinned_token: int | None = None

    @property
    def committed_token(self) -> int:
        """The token that the request went on with: the pinned one of a playback, else the chosen one."""
        return self.chosen_token if self.pinned_token is None else self.pinned_token


@dataclass(frozen=True, slots=True)
class LayerRows:
    """K and V that a step wrote in one layer: arrays (packed_rows, kv_heads, head_size), rows in batch order.

    On CPU these are numpy arrays; on a GPU they are lazy-evaluated mx.arrays that the step has already computed.
    """

    keys: Any
    values: Any


@dataclass(frozen=True, slots=True)
class MemoryRead:
    """What lay in K/V memory for a segment before its step wrote: one entry per layer, rows in position order.

    Arrays are copies (positions, kv_heads, head_size), positions `0 .. first_position - 1`; bfloat16 comes as uint16.
    """

    request_id: str
    layers: Sequence[LayerRows]


@dataclass(frozen=True, slots=True)
class Draft:
    """One request's speculation in one step: `proposed` for positions `first_position ..`.

    The first `accepted_tokens` were committed; `next_token` is what the target chose after them (the replacement
    of the first rejected proposal, or the bonus token), None when nothing was sampled beyond the accepted ones.
    """

    request_id: str
    first_position: int
    proposed: tuple[int, ...]
    accepted_tokens: int
    next_token: int | None
    drafter: str


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Something that happened to a request: admitted, preempted, finished, cancelled, refused, timed_out, failed.

    `position` is the number of positions that were computed at that moment; `detail` is free text.
    """

    kind: str
    request_id: str
    position: int
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ReusedRow:
    """A KV row that a request read without computing it, and who wrote it: (request, step, packed row)."""

    request_id: str
    position: int
    writer_request_id: str
    writer_step: int
    writer_row: int


@dataclass(frozen=True, slots=True)
class QueueState:
    """Requests and KV memory after the batch was planned. Blocks are 0 where KV is not paged."""

    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int


@dataclass(frozen=True, slots=True)
class StepTimings:
    """Seconds spent in each phase of one step."""

    schedule_s: float
    draft_s: float
    forward_s: float
    sample_s: float


@dataclass(frozen=True, slots=True)
class StepEvent:
    """Everything one step did.

    `logits` and `processed_logits`: float32, (head_rows, vocabulary), before and after penalties and bias;
    the same object when no processor changed anything. `kv_rows`: one entry per layer, None when not asked for.
    `draft_batch` and `draft_kv_rows` describe the draft model's own forwards, where there is one. `memory`: one
    entry per segment in the steps that an observer asked for, else empty.
    """

    batch: Batch
    plan: Plan
    logits: npt.NDArray[np.float32]
    processed_logits: npt.NDArray[np.float32]
    sampled: tuple[SampledRow, ...]
    kv_rows: Sequence[LayerRows] | None
    queue: QueueState
    timings: StepTimings
    drafts: tuple[Draft, ...] = ()
    lifecycle: tuple[LifecycleEvent, ...] = ()
    reused: tuple[ReusedRow, ...] = ()
    draft_forwards: tuple[DraftForward, ...] = ()
    tensors: Mapping[str, Any] = field(default_factory=dict)
    memory: tuple[MemoryRead, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftForward:
    """One packed forward of the draft model inside a step, with the K/V rows it wrote."""

    batch: Batch
    plan: Plan
    kv_rows: Sequence[LayerRows] | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts about a run, resolved before its first step.

    `settings` and `environment` are JSON-ready. `layers`, `kv_heads`, `head_size` shape the K/V rows.
    `token_bytes` gives the text of a token id as bytes (one token can be part of a character).
    """

    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    weights_hash: str
    tokenizer_hash: str
    layers: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    token_bytes: Callable[[int], bytes]


@dataclass(frozen=True, slots=True)
class ObserverNeeds:
    """What an observer wants computed for it. Asking for less costs less.

    `memory_every`: a copy of the K/V rows that each segment found in memory, every so many steps (0: never).
    """

    kv_rows: bool = False
    tensor_sites: tuple[str, ...] = ()
    memory_every: int = 0


@dataclass(frozen=True, slots=True)
class RunEnding:
    """How a run ended: all served, by Ctrl-C (`interrupted`), or by an error (`failure`: its sentence)."""

    interrupted: bool = False
    failure: str = ""

    @property
    def is_complete(self) -> bool:
        """True when the run served what it was asked to."""
        return not (self.interrupted or self.failure)


class Observer(Protocol):
    """Receives what a run did, in order, on the engine's thread."""

    @property
    def needs(self) -> ObserverNeeds:
        """What each step's event must contain."""
        ...

    def run_started(self, info: RunInfo) -> None:
        """Called once, before the first step."""
        ...

    def request_submitted(self, request: Request, step: int) -> None:
        """A request entered the waiting queue before `step` was planned."""
        ...

    def step_finished(self, event: StepEvent) -> None:
        """One step has been committed."""
        ...

    def request_finished(self, completion: Completion, step: int) -> None:
        """A request ended (for whatever reason) in `step`."""
        ...

    def run_finished(self, ending: RunEnding) -> None:
        """The run ended, well or not."""
        ...
