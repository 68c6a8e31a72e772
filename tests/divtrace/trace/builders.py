"""Builds small runs by hand and records them with the real recorder.

A `TraceBuilder` is a readable description of a run: requests, then steps made of segments. Everything
that is not said has a default that depends only on (request, position) or (request, position, layer), never
on the step or the neighbours, so two builders that say the same about a row give the same bytes for it::

    run = TraceBuilder(layers=2)
    run.request("a", prompt=(5, 6, 7), max_tokens=2)
    run.step(segment("a", SegmentKind.PREFILL, 0, (5, 6, 7), chosen=(9,)), path="gemm")
    run.step(segment("a", SegmentKind.DECODE, 3, (9,), chosen=(11,)))
    run.content[("a", 1, 0)] = 42          # K/V of request a, position 1, layer 0: other bytes
    run.content[("a", 1)] = 43             # or of that position in every layer
    run.runner_up[("a", 3)] = (12, 0.25)   # the token behind the chosen one, and the gap between them
    run.finish("a")
    path = run.write(tmp_path / "a.h5")

Equal content ids are equal bytes and so equal hashes, across requests and builders. `events()` gives the
engine's events without a file, `replay(observer)` sends them to any observer. The API is stable: alignment
and blame tests use it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.recorder.recorder import Recorder
from divtrace.trace.schema import Level
from engine.batch import Batch, Segment, SegmentKind
from engine.observer import (
    Draft,
    DraftForward,
    LayerRows,
    LifecycleEvent,
    Observer,
    Plan,
    QueueState,
    ReusedRow,
    RunEnding,
    RunInfo,
    SampledRow,
    SiteChoice,
    StepEvent,
    StepTimings,
)
from engine.request import Completion, FinishReason, Request, SamplingParams


@dataclass(frozen=True, slots=True)
class SegmentSpec:
    """One segment to be: `chosen` are the tokens decided at its last rows, `committed` of which count."""

    request_id: str
    kind: SegmentKind
    first_position: int
    tokens: tuple[int, ...]
    chosen: tuple[int, ...] = ()
    committed: int | None = None
    cached_tokens: int = 0
    proposed_tokens: int = 0


def segment(request_id: str, kind: SegmentKind, first_position: int, tokens: Sequence[int], **more: Any) -> SegmentSpec:
    """A segment of a step; see `SegmentSpec` for what else can be said."""
    return SegmentSpec(request_id, kind, first_position, tuple(tokens), **more)


def plan_of(path: str, rows: int, layers: int, attention: str = "segment", model: str = "target") -> Plan:
    """A plan with one linear and one attention site per layer and the head, all linears on `path`."""
    sites = []
    for layer in range(layers):
        name = f"model.layers.{layer}"
        sites.append(SiteChoice(f"{name}.mlp", "linear", path, "test", rows, 8, 16, "float32", 4, 32, model))
        sites.append(
            SiteChoice(f"{name}.attention", "attention", attention, "test", rows, 0, 0, "float32", 0, 0, model)
        )
    sites.append(SiteChoice("model.head", "head", path, "test", rows, 8, 16, "float32", 4, 32, model))
    return tuple(sites)


@dataclass
class TraceBuilder:
    """A run to be recorded. `content` and `runner_up` may be changed until `events` or `write`."""

    layers: int = 2
    kv_heads: int = 1
    head_size: int = 4
    vocabulary_size: int = 32
    settings: dict[str, Any] = field(default_factory=lambda: {"kernel_policy": "test"})
    environment: dict[str, Any] = field(default_factory=lambda: {"backend": "test"})
    weights_hash: str = "weights"
    tokenizer_hash: str = "tokenizer"
    workload: dict[str, Any] | None = None
    content: dict[tuple[Any, ...], int] = field(default_factory=dict)
    runner_up: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    logits: dict[tuple[str, int], npt.NDArray[np.float32]] = field(default_factory=dict)
    _actions: list[tuple[str, Any]] = field(default_factory=list)
    _steps: int = 0
    _chosen: dict[str, list[int]] = field(default_factory=dict)

    def request(
        self,
        request_id: str,
        prompt: Sequence[int],
        max_tokens: int = 16,
        sampling: SamplingParams | None = None,
    ) -> None:
        """Submit a request before the next step."""
        request = Request(request_id, tuple(prompt), max_tokens, sampling or SamplingParams())
        self._chosen[request_id] = []
        self._actions.append(("request", (request, self._steps)))

    def step(
        self,
        *segments: SegmentSpec,
        path: str = "gemv",
        attention: str = "segment",
        plan: Plan | None = None,
        drafts: Sequence[Draft] = (),
        lifecycle: Sequence[LifecycleEvent] = (),
        reused: Sequence[ReusedRow] = (),
        draft_forwards: Sequence[DraftForward] = (),
        random_numbers: Sequence[float | None] = (),
    ) -> int:
        """Run one step with these segments, in row order; return its number."""
        number = self._steps
        batch = _batch(number, segments)
        parts = {
            "plan": plan or plan_of(path, batch.packed_rows, self.layers, attention),
            "drafts": tuple(drafts),
            "lifecycle": tuple(lifecycle),
            "reused": tuple(reused),
            "draft_forwards": tuple(draft_forwards),
        }
        sampled = _sampled(segments, batch, random_numbers)
        for row in sampled:
            if row.committed:
                self._chosen[row.request_id].append(row.chosen_token)
        self._actions.append(("step", (batch, sampled, parts)))
        self._steps += 1
        return number

    def finish(self, request_id: str, reason: FinishReason = FinishReason.LENGTH, detail: str = "") -> None:
        """End a request in the last step, with the tokens that were committed for it."""
        completion = Completion(request_id, tuple(self._chosen[request_id]), reason, 0.0, 0.5, 1.0, 2.0, detail)
        self._actions.append(("finish", (completion, max(self._steps - 1, 0))))

    def draft_forward(self, *segments: SegmentSpec, path: str = "gemv", layers: int = 1) -> DraftForward:
        """One forward of a draft model with `layers` layers; content keys start with "draft"."""
        batch = _batch(self._steps, segments)
        rows = self._kv_rows(batch, layers, prefix=("draft",))
        return DraftForward(batch, plan_of(path, batch.packed_rows, layers, model="draft"), rows)

    def kv_row(self, key: tuple[Any, ...], side: str) -> npt.NDArray[np.float32]:
        """K (`side` "k") or V ("v") of one row, from its content id: (kv_heads, head_size)."""
        *owner, position, layer = key
        content = self.content.get(key, self.content.get((*owner, position)))
        seed = zlib.crc32(repr(key).encode()) if content is None else content + (layer << 40)
        generator = np.random.default_rng([seed, ord(side)])
        return generator.standard_normal((self.kv_heads, self.head_size), np.float32)

    def logits_row(self, request_id: str, position: int, chosen: int) -> npt.NDArray[np.float32]:
        """Logits from which `chosen` is picked at `position`: (vocabulary,), ahead of `runner_up`."""
        given = self.logits.get((request_id, position))
        if given is not None:
            return np.asarray(given, np.float32)
        generator = np.random.default_rng(zlib.crc32(repr((request_id, position)).encode()))
        row = generator.uniform(-4, 0, self.vocabulary_size).astype(np.float32)
        row[chosen] = 8
        token, gap = self.runner_up.get((request_id, position), (chosen, 0.0))
        if token != chosen:
            row[token] = 8 - gap
        return row

    def info(self) -> RunInfo:
        """What the engine would say before the first step; the text of token n is `<n>`."""
        return RunInfo(
            self.settings,
            self.environment,
            self.weights_hash,
            self.tokenizer_hash,
            self.layers,
            self.kv_heads,
            self.head_size,
            self.vocabulary_size,
            lambda token: f"<{token}>".encode(),
        )

    def events(self) -> list[StepEvent]:
        """The events of all steps."""
        return [self._event(*details) for kind, details in self._actions if kind == "step"]

    def submitted(self) -> list[Request]:
        """All requests, in submission order."""
        return [details[0] for kind, details in self._actions if kind == "request"]

    def replay(self, observer: Observer, ending: RunEnding | None = None, end: bool = True) -> None:
        """Send the whole run to an observer, in the engine's order. `ending`: a complete one unless given."""
        observer.run_started(self.info())
        for kind, details in self._actions:
            if kind == "request":
                observer.request_submitted(*details)
            elif kind == "step":
                observer.step_finished(self._event(*details))
            else:
                observer.request_finished(*details)
        if end:
            observer.run_finished(ending or RunEnding())

    def write(
        self, path: Path, level: Level = Level.KV, top_k: int = 4, end: bool = True, **recorder_settings: Any
    ) -> Path:
        """Record the run into a trace at `path`; without `end` it ends early, after a last flush."""
        recorder = Recorder(path, level, top_k, workload=self.workload, **({"flush_steps": 1} | recorder_settings))
        self.replay(recorder, end=end)
        recorder.abandon()
        return path

    def _event(self, batch: Batch, sampled: tuple[SampledRow, ...], parts: dict[str, Any]) -> StepEvent:
        rows = [self.logits_row(row.request_id, row.position, row.chosen_token) for row in sampled]
        logits = np.array(rows, np.float32).reshape(len(rows), self.vocabulary_size)
        return StepEvent(
            batch=batch,
            logits=logits,
            processed_logits=logits,
            sampled=sampled,
            kv_rows=self._kv_rows(batch, self.layers, prefix=()),
            queue=QueueState(len(batch.segments), 0, 0, 0, 0),
            timings=StepTimings(0.001, 0.0, 0.002, 0.003),
            **parts,
        )

    def _kv_rows(self, batch: Batch, layers: int, prefix: tuple[str, ...]) -> list[LayerRows]:
        owners = [(s.request_id, p) for s in batch.segments for p in range(s.first_position, s.end_position)]
        shape = (len(owners), self.kv_heads, self.head_size)
        return [
            LayerRows(*(
                np.array([self.kv_row((*prefix, *owner, layer), side) for owner in owners]).reshape(shape)
                for side in "kv"
            ))
            for layer in range(layers)
        ]  # fmt: skip


def _batch(step: int, specs: Sequence[SegmentSpec]) -> Batch:
    segments = []
    first_row = 0
    for spec in specs:
        segments.append(
            Segment(
                spec.request_id,
                spec.kind,
                spec.first_position,
                spec.tokens,
                first_row,
                len(spec.chosen),
                spec.cached_tokens,
                spec.proposed_tokens,
            )
        )
        first_row += len(spec.tokens)
    return Batch(step, tuple(segments))


def _sampled(
    specs: Sequence[SegmentSpec], batch: Batch, random_numbers: Sequence[float | None]
) -> tuple[SampledRow, ...]:
    rows: list[SampledRow] = []
    for spec, planned in zip(specs, batch.segments, strict=True):
        first = planned.rows - len(spec.chosen)
        committed = len(spec.chosen) if spec.committed is None else spec.committed
        for index, token in enumerate(spec.chosen):
            draw = random_numbers[len(rows)] if random_numbers else None
            position = spec.first_position + first + index + 1
            row = planned.first_row + first + index
            rows.append(SampledRow(spec.request_id, position, row, len(rows), token, index < committed, draw))
    return tuple(rows)


def example_run() -> TraceBuilder:
    """Two requests: chunked prefill beside decoding, a prefix hit, a verification with a rejected token."""
    run = TraceBuilder(workload={"name": "example"})
    run.request("anchor", (5, 6, 7), max_tokens=4)
    run.step(segment("anchor", SegmentKind.PREFILL, 0, (5, 6, 7), chosen=(9,)), path="gemm")
    run.request("follower", (5, 6, 8, 4), max_tokens=2)
    run.step(
        segment("anchor", SegmentKind.DECODE, 3, (9,), chosen=(10,)),
        segment("follower", SegmentKind.PREFILL, 2, (8,), cached_tokens=2),
        lifecycle=[LifecycleEvent("admitted", "follower", 2, "prefix of 2 tokens")],
        reused=[ReusedRow("follower", position, "anchor", 0, position) for position in range(2)],
        path="gemm",
    )
    forward = run.draft_forward(segment("anchor", SegmentKind.DECODE, 4, (10,)))
    run.step(
        segment("anchor", SegmentKind.VERIFY, 4, (10, 11, 12), chosen=(11, 13, 14), committed=2, proposed_tokens=2),
        segment("follower", SegmentKind.PREFILL, 3, (4,), chosen=(20,), cached_tokens=2),
        drafts=[Draft("anchor", 5, (11, 12), 1, 13, "model")],
        draft_forwards=[forward],
    )
    run.finish("anchor")
    run.step(segment("follower", SegmentKind.DECODE, 4, (20,), chosen=(21,)))
    run.finish("follower")
    return run
