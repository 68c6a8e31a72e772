"""Turns one step event into rows of the step's tables. Must not know files or when they are flushed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.recorder.audit import MemoryAudit
from divtrace.recorder.hashers import Finish, RowHasher
from divtrace.recorder.hashing import HashedRows, digest_step
from divtrace.recorder.interning import Interner
from divtrace.recorder.logits import TopLogits, are_finite, hash_logits, log_sum_exp, top_logits
from divtrace.recorder.step_flags import NO_FLAGS, StepFlag
from divtrace.recorder.tensor_columns import append_tensors
from divtrace.recorder.tensors import TensorRing, fired_trigger
from divtrace.trace.schema import Level
from divtrace.trace.writer import TraceWriter
from engine.batch import Batch, SegmentKind
from engine.observer import DraftForward, StepEvent

SEGMENT_KINDS = (SegmentKind.PREFILL, SegmentKind.DECODE, SegmentKind.VERIFY, SegmentKind.RECOMPUTE)

SEGMENT_FIELDS = ("first_position", "first_row", "cached_tokens", "wanted_logits", "proposed_tokens")


class StepColumns:
    """Appends steps. `requests` gives the row of each request id and is shared with whoever adds requests.

    With `audit`, K/V rows that a step read are held against what was written; with `tensors`, whole arrays are kept.
    """

    def __init__(
        self,
        writer: TraceWriter,
        interner: Interner,
        requests: Mapping[str, int],
        hasher: RowHasher,
        audit: MemoryAudit | None = None,
        tensors: TensorRing | None = None,
    ) -> None:
        self._writer = writer
        self._interner = interner
        self._requests = requests
        self._hasher = hasher
        self._level = writer.header.level
        self._top_k = writer.header.top_k
        self._audit = audit
        self._tensors = tensors

    def append_step(self, event: StepEvent, flags: StepFlag = NO_FLAGS) -> StepFlag:
        """Append everything that one step did, the row of `steps` last; return its flags."""
        batch = event.batch
        # Begun first: a device hashes while the host looks at the logits.
        finish, finish_drafts = self._begin_hashing(event)
        sampled_offset = self._append_sampled(event)
        hashed = finish() if finish is not None else None
        if hashed is not None and not hashed.is_finite:
            flags |= StepFlag.KV_NOT_FINITE
        if not are_finite(event.logits):
            flags |= StepFlag.LOGITS_NOT_FINITE
        if self._audit is not None and hashed is not None and self._append_audit(self._audit, event, hashed):
            flags |= StepFlag.AUDIT_FAILED
        self._append_drafts(event, finish_drafts)
        self._append_lifecycle(event)
        if self._tensors is not None:
            kept = self._tensors.step_finished(event, fired_trigger(self._tensors.settings, event, flags))
            append_tensors(self._writer, self._interner, kept)
        self._writer.append_step(
            step=batch.step,
            packed_rows=batch.packed_rows,
            head_rows=batch.head_rows,
            max_query_length=batch.max_query_length,
            max_key_length=batch.max_key_length,
            plan=self._interner.plan(event.plan),
            segment_offset=self._append_segments("segments", batch),
            segment_count=len(batch.segments),
            row_offset=self._append_rows("rows", batch, hashed),
            sampled_offset=sampled_offset,
            sampled_count=len(event.sampled),
            flags=int(flags),
            digest=0 if hashed is None else digest_step(hashed.digest),
            **_fields(event.queue, ("running", "waiting", "blocks_used", "blocks_cached", "blocks_total")),
            **_fields(event.timings, ("schedule_s", "draft_s", "forward_s", "sample_s")),
        )
        return flags

    def _begin_hashing(self, event: StepEvent) -> tuple[Finish | None, list[Finish | None]]:
        """Start on the step's K/V rows and on those of each draft forward; nothing where they are not recorded."""
        if not self._level.includes(Level.KV):
            return None, [None] * len(event.draft_forwards)
        if event.kv_rows is None:
            raise ValueError(f"step {event.batch.step} has no K/V rows, which level {self._level} records")
        drafts = [
            None if forward.kv_rows is None else self._hasher.begin(forward.kv_rows, forward.batch.packed_rows)
            for forward in event.draft_forwards
        ]
        return self._hasher.begin(event.kv_rows, event.batch.packed_rows), drafts

    def _append_audit(self, audit: MemoryAudit, event: StepEvent, hashed: HashedRows) -> int:
        audit.take_reused(event)
        changed = audit.check(event)
        for row in changed:
            self._writer.append_row(
                "audits",
                step=event.batch.step,
                request=self._requests[row.request_id],
                position=row.position,
                layer=row.layer,
                kind_string=self._interner.string(row.kind),
                expected_hash=row.expected_hash,
                found_hash=row.found_hash,
            )
        audit.note(event, hashed)
        return len(changed)

    def _append_segments(self, table: str, batch: Batch, **extra: npt.ArrayLike) -> int:
        segments = batch.segments
        rows = np.array([segment.rows for segment in segments], np.uint64)
        first_token = self._interner.token_list([token for segment in segments for token in segment.tokens])
        columns: dict[str, npt.ArrayLike] = {
            "step": np.full(len(segments), batch.step),
            "request": [self._requests[segment.request_id] for segment in segments],
            "kind": [SEGMENT_KINDS.index(segment.kind) for segment in segments],
            "rows": rows,
            "token_offset": first_token + np.cumsum(rows) - rows,
        }
        columns |= {name: [getattr(segment, name) for segment in segments] for name in SEGMENT_FIELDS}
        return self._writer.append(table, columns | extra)

    def _append_rows(self, table: str, batch: Batch, hashed: HashedRows | None, **extra: Any) -> int:
        owners = [self._requests[segment.request_id] for segment in batch.segments]
        rows = batch.packed_rows
        columns: dict[str, npt.ArrayLike] = {
            "step": np.full(rows, batch.step, np.uint32),
            "row": np.arange(rows, dtype=np.uint32),
            "request": np.repeat(np.array(owners, np.uint32), [segment.rows for segment in batch.segments]),
            "position": batch.positions,
        }
        if hashed is not None:
            columns |= _fields(hashed, ("digest", "key_hash", "value_hash", "key_magnitude", "value_magnitude"))
        return self._writer.append(table, columns | extra)

    def _append_sampled(self, event: StepEvent) -> int:
        sampled = event.sampled
        offset = self._writer.length("sampled")
        if not sampled:
            return offset
        chosen = np.array([row.chosen_token for row in sampled])
        committed_tokens = [row.committed_token for row in sampled]
        columns: dict[str, npt.ArrayLike] = {
            "step": np.full(len(sampled), event.batch.step),
            "request": [self._requests[row.request_id] for row in sampled],
            "position": [row.position for row in sampled],
            "row": [row.row for row in sampled],
            "chosen": chosen,
            "committed_token": committed_tokens,
            "committed": [row.committed for row in sampled],
            "random_number": [np.nan if row.random_number is None else row.random_number for row in sampled],
        }
        if self._level.includes(Level.LOGITS):
            columns |= self._logit_columns(event, chosen)
        self._interner.token_texts({*map(int, chosen), *committed_tokens})
        return self._writer.append("sampled", columns)

    def _logit_columns(self, event: StepEvent, chosen: npt.NDArray[Any]) -> dict[str, npt.ArrayLike]:
        head_rows = np.array([row.head_row for row in event.sampled])
        raw = event.logits if _is_whole(head_rows, event.logits) else event.logits[head_rows]
        processed = raw if event.processed_logits is event.logits else event.processed_logits[head_rows]
        top = top_logits(raw, self._top_k)
        processed_top = top if processed is raw else top_logits(processed, self._top_k)
        self._interner.token_texts(map(int, np.unique(np.concatenate([top.ids, processed_top.ids]))))
        return {
            "top_ids": top.ids,
            "top_values": top.values,
            "processed_top_ids": processed_top.ids,
            "processed_top_values": processed_top.values,
            "log_sum_exp": log_sum_exp(raw),
            "chosen_logit": processed[np.arange(len(chosen)), chosen],
            "gap": _gaps(processed_top),
            "logits_hash": hash_logits(raw),
        }

    def _append_drafts(self, event: StepEvent, hashing: Sequence[Finish | None]) -> None:
        for draft in event.drafts:
            self._writer.append_row(
                "drafts",
                step=event.batch.step,
                request=self._requests[draft.request_id],
                first_position=draft.first_position,
                proposed_offset=self._interner.token_list(draft.proposed),
                proposed_count=len(draft.proposed),
                accepted_tokens=draft.accepted_tokens,
                next_token=-1 if draft.next_token is None else draft.next_token,
                drafter_string=self._interner.string(draft.drafter),
            )
        for number, (forward, finish) in enumerate(zip(event.draft_forwards, hashing, strict=True)):
            hashed = finish() if finish is not None else None
            self._append_draft_forward(event.batch.step, number, forward, hashed)

    def _append_draft_forward(self, step: int, number: int, forward: DraftForward, hashed: HashedRows | None) -> None:
        batch = Batch(step, forward.batch.segments)
        row_offset = self._writer.length("draft_rows")
        extra: dict[str, npt.ArrayLike] = {"forward": np.full(batch.packed_rows, number)}
        if hashed is not None:
            extra |= self._append_draft_layers(hashed)
        self._append_rows("draft_rows", batch, hashed, **extra)
        self._writer.append_row(
            "draft_forwards",
            step=step,
            forward=number,
            plan=self._interner.plan(forward.plan),
            packed_rows=batch.packed_rows,
            segment_offset=self._append_segments("draft_segments", batch, forward=[number] * len(batch.segments)),
            segment_count=len(batch.segments),
            row_offset=row_offset,
        )

    def _append_draft_layers(self, hashed: HashedRows) -> dict[str, npt.ArrayLike]:
        rows, layers = hashed.key_hash.shape
        names = ("key_hash", "value_hash", "key_magnitude", "value_magnitude")
        flat = {name: column.reshape(-1) for name, column in _fields(hashed, names).items()}
        first = self._writer.append("draft_layers", flat)
        return {"layer_offset": first + layers * np.arange(rows), "layer_count": np.full(rows, layers)}

    def _append_lifecycle(self, event: StepEvent) -> None:
        step = event.batch.step
        for happening in event.lifecycle:
            if happening.request_id not in self._requests:
                continue
            self._writer.append_row(
                "events",
                step=step,
                request=self._requests[happening.request_id],
                kind_string=self._interner.string(happening.kind),
                position=happening.position,
                detail_string=self._interner.string(happening.detail),
            )
        if event.reused:
            self._writer.append(
                "reused",
                {
                    "step": [step] * len(event.reused),
                    "request": [self._requests[row.request_id] for row in event.reused],
                    "position": [row.position for row in event.reused],
                    "writer_request": [self._requests[row.writer_request_id] for row in event.reused],
                    "writer_step": [row.writer_step for row in event.reused],
                    "writer_row": [row.writer_row for row in event.reused],
                },
            )


def _fields(record: object, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _is_whole(head_rows: npt.NDArray[Any], logits: npt.NDArray[np.float32]) -> bool:
    return len(head_rows) == len(logits) and bool((head_rows == np.arange(len(logits))).all())


def _gaps(top: TopLogits) -> npt.NDArray[np.float32]:
    if top.values.shape[1] < 2:
        return np.full(len(top.values), np.nan, np.float32)
    with np.errstate(invalid="ignore"):
        return top.values[:, 0] - top.values[:, 1]
