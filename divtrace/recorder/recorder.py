"""Turns the engine's step events into a trace. Owns what is recorded at which level; must not know HDF5.

It only reads what a step has already computed, so a run gives the same bits with and without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from divtrace.errors import TraceError
from divtrace.recorder.audit import MemoryAudit
from divtrace.recorder.hashers import choose_hasher
from divtrace.recorder.interning import Interner
from divtrace.recorder.interrupts import interrupts_deferred
from divtrace.recorder.step_columns import StepColumns
from divtrace.recorder.tensors import TensorRing, TensorSettings
from divtrace.trace.header import Header
from divtrace.trace.schema import Level
from divtrace.trace.writer import TraceWriter
from engine.observer import ObserverNeeds, RunEnding, RunInfo, StepEvent
from engine.request import Completion, Request

DEFAULT_TOP_K = 8


class Recorder:
    """An engine observer that writes a trace to `path`.

    The file is created when the run starts, flushed every `flush_steps` steps or `flush_seconds` seconds, and
    closed when the run ends. `workload` is kept in the header as it is (JSON-ready). Every `audit_every` steps (0:
    never) the K/V rows that requests read are held against their hashes at writing; that needs level kv. `tensors` says
    which whole arrays level tensors keeps. `hash_name` picks the hash of K/V rows (see `hashers`); else the device
    does.

    Raises:
        DivtraceError: there is no such hash, or (when the run starts) no such layer.
        TraceError: the file exists and `overwrite` is False, or it cannot be written.
    """

    def __init__(
        self,
        path: str | Path,
        level: Level = Level.KV,
        top_k: int = DEFAULT_TOP_K,
        workload: Mapping[str, Any] | None = None,
        flush_steps: int = 16,
        flush_seconds: float = 2.0,
        overwrite: bool = False,
        audit_every: int = 0,
        tensors: TensorSettings | None = None,
        hash_name: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.level = level
        self._top_k = top_k
        self._workload = workload
        self._flush_steps = flush_steps
        self._flush_seconds = flush_seconds
        self._overwrite = overwrite
        self._audit_every = audit_every if level.includes(Level.KV) else 0
        self._tensors = tensors if level.includes(Level.TENSORS) else None
        self._hasher = choose_hasher(hash_name)
        self._requests: dict[str, int] = {}
        self._writer: TraceWriter | None = None

    @property
    def needs(self) -> ObserverNeeds:
        """K/V rows from level `kv` on, and what lies in memory where that is audited."""
        sites = self._tensors.sites if self._tensors is not None else ()
        kv_rows = self.level.includes(Level.KV)
        return ObserverNeeds(kv_rows=kv_rows, tensor_sites=sites, memory_every=self._audit_every)

    def run_started(self, info: RunInfo) -> None:
        """Create the file with everything in it that is known before the first step."""
        if self._tensors is not None:
            self._tensors.check_layers(info.layers)
        header = Header(
            level=self.level,
            layers=info.layers,
            kv_heads=info.kv_heads,
            head_size=info.head_size,
            vocabulary_size=info.vocabulary_size,
            top_k=min(self._top_k, info.vocabulary_size),
            settings=info.settings,
            environment=info.environment,
            weights_hash=info.weights_hash,
            tokenizer_hash=info.tokenizer_hash,
            workload=self._workload,
            hash_name=self._hasher.name,
        )
        self._writer = TraceWriter(self.path, header, self._flush_steps, self._flush_seconds, overwrite=self._overwrite)
        self._interner = Interner(self._writer, info.token_bytes)
        audit = MemoryAudit(self._hasher) if self._audit_every else None
        ring = TensorRing(self._tensors) if self._tensors is not None else None
        self._columns = StepColumns(self._writer, self._interner, self._requests, self._hasher, audit, ring)

    def request_submitted(self, request: Request, step: int) -> None:
        """Note the prompt and the settings of a request."""
        writer = self._open_writer()
        with self._as_a_whole():
            self._requests[request.id] = writer.append_row(
                "requests",
                id_string=self._interner.string(request.id),
                submitted_step=step,
                prompt_offset=self._interner.token_list(request.prompt),
                prompt_count=len(request.prompt),
                settings_string=self._interner.string(_request_settings(request)),
            )

    def step_finished(self, event: StepEvent) -> None:
        """Record one step."""
        writer = self._open_writer()
        if event.batch.step != writer.length("steps"):
            raise TraceError(
                f"{self.path}: step {event.batch.step} came after {writer.length('steps')} steps; "
                "a trace holds every step of a run, numbered from 0."
            )
        with self._as_a_whole():
            self._columns.append_step(event)

    def request_finished(self, completion: Completion, step: int) -> None:
        """Note how a request ended; one that was never submitted is no part of the run."""
        request = self._requests.get(completion.request_id)
        if request is None:
            return
        writer = self._open_writer()
        with self._as_a_whole():
            writer.append_row(
                "completions",
                request=request,
                step=step,
                output_offset=self._interner.token_list(completion.tokens),
                output_count=len(completion.tokens),
                reason_string=self._interner.string(completion.finish_reason.value),
                detail_string=self._interner.string(completion.detail),
                queued_s=completion.queued_s,
                scheduled_s=_seconds(completion.scheduled_s),
                first_token_s=_seconds(completion.first_token_s),
                finished_s=completion.finished_s,
            )

    def run_finished(self, ending: RunEnding) -> None:
        """Write the footer and close the file."""
        writer = self._open_writer()
        with self._as_a_whole():
            writer.close(ending.interrupted, ending.failure)

    def abandon(self) -> None:
        """Close the file without a footer after an error of the run: the trace says that it ended early."""
        if self._writer is not None:
            self._writer.abandon()

    @contextmanager
    def _as_a_whole(self) -> Iterator[None]:
        """Record what one call brings, or nothing of it: half a step in a trace would contradict itself.

        Ctrl-C waits until it is done. After an error the trace ends with its last flush.
        """
        with interrupts_deferred():
            try:
                yield
            except BaseException:
                self.abandon()
                raise

    def _open_writer(self) -> TraceWriter:
        if self._writer is None:
            raise TraceError(f"{self.path}: nothing can be recorded before the run has started.")
        return self._writer


def _seconds(value: float | None) -> float:
    return np.nan if value is None else value


def _request_settings(request: Request) -> str:
    settings = asdict(request)
    del settings["id"], settings["prompt"]
    return json.dumps(settings, sort_keys=True)
