"""A toy engine whose numbers are hashes of what they depend on: a planted change spreads exactly as numerics would.

Every K, V and logits row is the hash of its inputs and of the paths that computed it, so two rows are equal exactly
when everything they follow from is. Each row also remembers what it read and a signature of its inputs per layer:
`true_origins` finds origins from those memories alone, without step numbers, timelines or the code under test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from divtrace.recorder.recorder import Recorder
from divtrace.trace.schema import Level
from engine.batch import Batch, Segment, SegmentKind
from engine.observer import (
    Draft,
    LayerRows,
    QueueState,
    ReusedRow,
    RunEnding,
    RunInfo,
    SampledRow,
    SiteChoice,
    StepEvent,
    StepTimings,
)
from engine.request import Completion, FinishReason, Request

VOCABULARY = 16
LAYER_SITES = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn",
    "self_attn.o_proj",
    "mlp.up_proj",
)
PathRule = Callable[[int, str, int], str]
"""(step, site, rows) to a path name."""


@dataclass(frozen=True, eq=False)
class Version:
    """One computed KV row: contents and input signatures per layer, and the versions that it read below it."""

    request: str
    position: int
    step: int
    row: int
    contents: tuple[tuple[int, int], ...]
    signatures: tuple[int, ...]
    read: tuple[Version, ...]


@dataclass(frozen=True, eq=False)
class Decided:
    """One committed decision: its logits, the signature of all that they follow from, and the rows read."""

    position: int
    step: int
    token: int
    logits: int
    signature: int
    read: tuple[Version, ...]


@dataclass
class Flow:
    """One request while it runs: committed tokens, and the version that its memory holds at each position."""

    request: Request
    tokens: list[int]
    memory: list[Version] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    recomputing: bool = False

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - len(self.request.prompt)


@dataclass
class World:
    """Runs segments under a path rule and keeps the truth. `bits_of` maps a path to what it does to bits."""

    rule: PathRule
    layers: int = 3
    bits_of: Mapping[str, int] = field(default_factory=lambda: {"gemv": 0, "gemm": 1})
    ties: frozenset[tuple[str, int]] = frozenset()
    events: list[StepEvent] = field(default_factory=list)
    flows: dict[str, Flow] = field(default_factory=dict)
    actions: list[tuple[str, object]] = field(default_factory=list)
    settings: dict[str, object] = field(default_factory=dict)
    silent_changes: set[tuple[int, str]] = field(default_factory=set)

    def submit(self, request: Request) -> None:
        """A request arrives before the next step."""
        self.flows[request.id] = Flow(request, list(request.prompt))
        self.actions.append(("request", (request, len(self.events))))

    def reuse(self, reader: str, shared: Sequence[Version]) -> tuple[ReusedRow, ...]:
        """Fill the start of a request's memory with rows that others wrote; the caller passes the result to `step`."""
        self.flows[reader].memory = list(shared)
        return tuple(ReusedRow(reader, place, v.request, v.step, v.row) for place, v in enumerate(shared))

    def step(
        self,
        parts: Sequence[tuple[str, SegmentKind, Sequence[int], int]],
        reused: Iterable[ReusedRow] = (),
        cached: int = 0,
    ) -> int:
        """One step of (request, kind, input tokens from the memory's end on, rows with logits); return its number."""
        number = len(self.events)
        segments, first_row = [], 0
        for name, kind, tokens, wanted in parts:
            start = len(self.flows[name].memory)
            proposed = len(tokens) - 1 if kind is SegmentKind.VERIFY else 0
            segments.append(Segment(name, kind, start, tuple(tokens), first_row, wanted, cached, proposed))
            first_row += len(tokens)
        batch = Batch(number, tuple(segments))
        plan = tuple(self._site(number, batch, site) for site in self._site_names())
        paths = {choice.site: self._bits(number, choice) for choice in plan}
        hidden = self._forward(batch, paths)
        self._sample(batch, plan, paths, hidden, tuple(reused))
        return number

    def finish(self, name: str) -> None:
        """A request ends in the last step."""
        flow = self.flows[name]
        tokens = tuple(flow.tokens[len(flow.request.prompt) :])
        completion = Completion(name, tokens, FinishReason.LENGTH, 0.0, 0.0, 0.0, 0.0)
        self.actions.append(("finish", (completion, len(self.events) - 1)))

    def true_token(self, name: str, position: int) -> int:
        """What every run commits there, except at a tie that drift decides."""
        return abs(hash((self.flows[name].request.prompt[-1], position))) % (VOCABULARY - 2) + 2

    def write(self, path: Path, level: Level = Level.KV) -> Path:
        """Record the run."""
        recorder = Recorder(path, level, 4)
        recorder.run_started(
            RunInfo(
                self.settings, {}, "weights", "tokenizer", self.layers, 1, 8, VOCABULARY, lambda t: f" t{t}".encode()
            )
        )
        for kind, details in self.actions:
            if kind == "request":
                recorder.request_submitted(*details)  # type: ignore[misc]
            elif kind == "step":
                recorder.step_finished(details)  # type: ignore[arg-type]
            else:
                recorder.request_finished(*details)  # type: ignore[misc]
        recorder.run_finished(RunEnding())
        return path

    def _site_names(self) -> list[str]:
        inside = [f"model.layers.{layer}.{site}" for layer in range(self.layers) for site in LAYER_SITES]
        return [*inside, "lm_head"]

    def _site(self, step: int, batch: Batch, site: str) -> SiteChoice:
        rows = batch.head_rows if site == "lm_head" else batch.packed_rows
        operation = "head" if site == "lm_head" else "attention" if site.endswith("self_attn") else "linear"
        if operation == "attention":
            return SiteChoice(site, operation, "row", "attention=row", rows, 0, 0, "float32", 0, 0)
        return SiteChoice(site, operation, self.rule(step, site, rows), "threshold:4", rows, 8, 8, "float32", 0, 0)

    def _bits(self, step: int, choice: SiteChoice) -> int:
        """What the path adds to the hash; a silent change adds to it without a trace of it in the plan."""
        return self.bits_of.get(choice.path, 0) + 7 * ((step, choice.site) in self.silent_changes)

    def _forward(self, batch: Batch, bits: Mapping[str, int]) -> list[Version]:
        """Compute all rows of a step, in row order; their hidden state is the last signature."""
        made = []
        for segment in batch.segments:
            memory = self.flows[segment.request_id].memory
            for offset, token in enumerate(segment.tokens):
                version = self._row(batch.step, segment, offset, token, memory, bits)
                memory.append(version)
                made.append(version)
        return made

    def _row(
        self, step: int, segment: Segment, offset: int, token: int, memory: list[Version], bits: Mapping[str, int]
    ) -> Version:
        hidden, contents, signatures = hash((token, len(memory))), [], []
        below = hash((token, len(memory)))
        for layer in range(self.layers):
            signatures.append(below)
            site = f"model.layers.{layer}."
            key = hash((hidden, 1, bits[site + "self_attn.k_proj"]))
            value = hash((hidden, 2, bits[site + "self_attn.v_proj"]))
            contents.append((key, value))
            seen = (*(version.contents[layer] for version in memory), (key, value))
            attended = hash((hidden, bits[site + "self_attn.q_proj"], seen, bits[site + "self_attn"]))
            hidden = hash((hidden, attended, bits[site + "self_attn.o_proj"], bits[site + "mlp.up_proj"]))
            below = hash((below, seen))
        signatures.extend((below, hidden))
        row = segment.first_row + offset
        read = tuple(memory)
        return Version(segment.request_id, len(memory), step, row, tuple(contents), tuple(signatures), read)

    def _sample(
        self,
        batch: Batch,
        plan: tuple[SiteChoice, ...],
        bits: Mapping[str, int],
        made: list[Version],
        reused: tuple[ReusedRow, ...],
    ) -> None:
        sampled: list[SampledRow] = []
        logits: list[npt.NDArray[np.float32]] = []
        drafts: list[Draft] = []
        for segment in batch.segments:
            flow = self.flows[segment.request_id]
            accepting, committed = True, 0
            for offset in range(segment.rows - segment.wanted_logits, segment.rows):
                version = made[segment.first_row + offset]
                number = hash((version.signatures[-1], bits["lm_head"]))
                position = version.position + 1
                token, row = self._choose(segment.request_id, position, number)
                sampled.append(SampledRow(segment.request_id, position, version.row, len(sampled), token, accepting))
                logits.append(row)
                if accepting:
                    read = (*version.read, version)
                    flow.decided.append(Decided(position, batch.step, token, number, version.signatures[-2], read))
                    flow.tokens.append(token)
                    committed += 1
                following = segment.tokens[offset + 1] if offset + 1 < segment.rows else None
                accepting = accepting and following == token
            if segment.kind is SegmentKind.VERIFY:
                proposed = segment.tokens[1:]
                first = segment.first_position + 1
                next_token = flow.tokens[-1]
                drafts.append(Draft(segment.request_id, first, proposed, committed - 1, next_token, "toy"))
                del flow.memory[segment.first_position + committed :]
        event = StepEvent(
            batch=batch,
            plan=plan,
            logits=np.array(logits, np.float32).reshape(len(logits), VOCABULARY),
            processed_logits=np.array(logits, np.float32).reshape(len(logits), VOCABULARY),
            sampled=tuple(sampled),
            kv_rows=_kv_rows(made, self.layers),
            queue=QueueState(len(batch.segments), 0, 0, 0, 0),
            timings=StepTimings(0.0, 0.0, 0.0, 0.0),
            drafts=tuple(drafts),
            reused=reused,
        )
        self.events.append(event)
        self.actions.append(("step", event))

    def _choose(self, name: str, position: int, number: int) -> tuple[int, npt.NDArray[np.float32]]:
        """Token and logits row: the bits of `number` are spread over small ones; at a tie they pick the winner."""
        row = np.linspace(-4, -3, VOCABULARY, dtype=np.float32)
        row[:8] += _spread(number) * np.float32(1e-5)
        token = self.true_token(name, position)
        other = 1
        row[token], row[other] = 8.0, 5.0
        if (name, position) in self.ties:
            row[other] = 8.0 + (0.001 if number % 2 else -0.001)
        return int(row.argmax()), row


def true_origins(a: Decided, b: Decided) -> set[tuple[int, int]]:
    """Pairs of steps (A, B) that made differing rows from equal inputs, found by following what was really read."""
    found: set[tuple[int, int]] = set()
    stack, seen = [(a.read, b.read)], set[tuple[int, int]]()
    while stack:
        for left, right in zip(*stack.pop(), strict=True):
            if left.contents == right.contents or (id(left), id(right)) in seen:
                continue
            seen.add((id(left), id(right)))
            layer = next(i for i, (x, y) in enumerate(zip(left.contents, right.contents, strict=True)) if x != y)
            if left.signatures[layer] == right.signatures[layer]:
                found.add((left.step, right.step))
            stack.append((left.read, right.read))
    if a.logits != b.logits and a.signature == b.signature:
        found.add((a.step, b.step))
    return found


def _kv_rows(made: Sequence[Version], layers: int) -> list[LayerRows]:
    return [
        LayerRows(*(
            np.array([_spread(version.contents[layer][side]) for version in made], np.float32).reshape(-1, 1, 8)
            for side in (0, 1)
        ))
        for layer in range(layers)
    ]  # fmt: skip


def _spread(number: int) -> npt.NDArray[np.float32]:
    """A 64-bit number as 8 small floats, one per byte: equal exactly when the number is."""
    return np.frombuffer(number.to_bytes(8, "little", signed=True), np.uint8).astype(np.float32)
