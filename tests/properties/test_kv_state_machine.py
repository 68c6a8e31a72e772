"""Paged K/V memory under random use, against an oracle that keeps every request's rows in plain lists.

Two tokens and blocks of four make prefixes collide all the time; nine blocks for four requests make the pool too small.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from engine.batch import Batch, Segment, SegmentKind
from engine.kv.arrays import ArrayBackend, MlxBackend, NumpyBackend
from engine.kv.paged import PagedStore

BLOCK, BLOCKS_TOTAL, LAYERS, NAMES = 4, 9, 2, "abcd"
Rows = npt.NDArray[np.float32]

tokens = st.integers(0, 1)
token_lists = st.lists(tokens, min_size=1, max_size=14).map(tuple)
chunks = st.lists(tokens, max_size=9).map(tuple) | st.tuples(tokens)
token_lists_of_requests = st.lists(chunks, min_size=1, max_size=len(NAMES))
picks = st.integers(0, len(NAMES) - 1)


@dataclass(frozen=True)
class Row:
    """One K/V row: its value (unique), who wrote it, and all tokens up to and including its own."""

    value: float
    writer: tuple[str, int, int]
    context: tuple[int, ...]


@dataclass
class Known:
    """What the oracle knows of an open request."""

    prompt: tuple[int, ...]
    rows: list[Row] = field(default_factory=list)

    @property
    def context(self) -> tuple[int, ...]:
        return self.rows[-1].context if self.rows else ()

    def next_tokens(self, drawn: tuple[int, ...]) -> tuple[int, ...]:
        """The prompt's tokens while it lasts, drawn ones behind it."""
        first = len(self.rows)
        end = first + len(drawn)
        return self.prompt[first:end] + drawn[len(self.prompt[first:end]) :]


def arrays_of(rows: list[Row], layer: int) -> Rows:
    """Keys of some rows in a layer, (n, 1, 2); values are their negatives."""
    flat = np.array([[row.value, row.value + layer + 0.5] for row in rows], np.float32)
    return flat.reshape(len(rows), 1, 2)


class PagedMemory(RuleBasedStateMachine):
    """The machine; `backend` and `prefix_cache` are chosen by subclasses."""

    backend: type[NumpyBackend] | type[MlxBackend] = NumpyBackend
    prefix_cache = True

    def __init__(self) -> None:
        super().__init__()
        made: ArrayBackend = self.backend()
        self.store = PagedStore(BLOCKS_TOTAL, BLOCK, self.prefix_cache, made)
        self.open: dict[str, Known] = {}
        self.history: dict[tuple[str, int, int], Row] = {}
        self.steps = 0

    @precondition(lambda self: len(self.open) < len(NAMES))
    @rule(prompt=token_lists)
    def admit(self, prompt: tuple[int, ...]) -> None:
        self._admit(self._closed_name(), prompt)

    @precondition(lambda self: self.open)
    @rule(parts=token_lists_of_requests, proposed=st.integers(0, 3), kept=st.integers(0, 3))
    def step(self, parts: list[tuple[int, ...]], proposed: int, kept: int) -> None:
        """Compute some rows of some requests; the last `proposed` of each are drafts, `kept` are accepted."""
        batch, written = self._batch(parts, proposed)
        self._run(batch, written)
        self.store.commit_step(batch)
        for segment in batch.segments:
            rows = written[segment.first_row : segment.first_row + segment.rows]
            known = self.open[segment.request_id]
            known.rows.extend(rows)
            rejected = segment.proposed_tokens - min(kept, segment.proposed_tokens)
            if rejected:
                del known.rows[-rejected:]
                self.store.truncate(segment.request_id, len(known.rows))

    @precondition(lambda self: self.open)
    @rule(parts=token_lists_of_requests)
    def step_that_fails_before_commit(self, parts: list[tuple[int, ...]]) -> None:
        batch, written = self._batch(parts, proposed=0)
        self._run(batch, written)

    @precondition(lambda self: self.open)
    @rule(pick=picks, rejected=st.integers(1, 9))
    def truncate(self, pick: int, rejected: int) -> None:
        name = self._open_name(pick)
        length = max(0, len(self.open[name].rows) - rejected)
        self.store.truncate(name, length)
        del self.open[name].rows[length:]

    @precondition(lambda self: 0 < len(self.open) < len(NAMES))
    @rule(pick=picks)
    def fork(self, pick: int) -> None:
        parent, child = self._open_name(pick), self._closed_name()
        known = self.open[parent]
        admission = self.store.fork(parent, child)
        assert admission.cached_tokens == len(known.rows)
        self.open[child] = Known(known.prompt, list(known.rows))

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def release(self, pick: int) -> None:
        self._release(self._open_name(pick))

    @precondition(lambda self: self.open)
    @rule(pick=picks)
    def release_for_good(self, pick: int) -> None:
        """Its blocks serve nobody who comes later, unless another open request holds the same one."""
        name = self._open_name(pick)
        own = self._blocks(name)
        context = self.open[name].context
        self.store.release(name, reusable=False)
        del self.open[name]
        held = {block for other in self.open for block in self._blocks(other)}
        if not context:
            return
        taken_over = self.store.admit("later", (*context, 0)).cached_tokens // BLOCK
        found = set(self.store._tables.sequence("later").table[:taken_over])
        assert not (found & own) - held
        self.store.release("later")

    @precondition(lambda self: any(known.rows for known in self.open.values()))
    @rule(pick=picks)
    def preempt_and_readmit(self, pick: int) -> None:
        name = self._open_name(pick)
        context = self.open[name].context or self.open[name].prompt
        self._release(name)
        self._admit(name, context)

    @rule(blocks=st.integers(1, BLOCKS_TOTAL))
    def evict(self, blocks: int) -> None:
        """Another request takes blocks for a moment and writes nothing."""
        self.store.admit("hog", (0,))
        fits = blocks <= self.store.free_blocks
        assert self.store.grow("hog", blocks * BLOCK) == fits
        self.store.check_integrity()
        self.store.release("hog")

    @invariant()
    def memory_adds_up(self) -> None:
        self.store.check_integrity()

    @invariant()
    def every_row_is_what_was_written_by_whom(self) -> None:
        request_names = self.store.request_names()
        for name, known in self.open.items():
            writers = [(request_names[number], step, row) for number, step, row in self.store.writers(name)]
            assert writers == [row.writer for row in known.rows]
            for layer in range(LAYERS) if known.rows else ():
                keys, values, _ = self.store.audit_read(layer, name)
                assert keys.tobytes() == arrays_of(known.rows, layer).tobytes()
                assert values.tobytes() == (-arrays_of(known.rows, layer)).tobytes()

    def teardown(self) -> None:
        for name in list(self.open):
            self._release(name)
            self.store.check_integrity()
        state = self.store.state()
        assert state.blocks_used == 0
        assert self.store.free_blocks == BLOCKS_TOTAL
        assert self.prefix_cache or state.blocks_cached == 0

    def _blocks(self, name: str) -> set[int]:
        return set(self.store._tables.sequence(name).table)

    def _closed_name(self) -> str:
        return next(name for name in NAMES if name not in self.open)

    def _open_name(self, pick: int) -> str:
        return list(self.open)[pick % len(self.open)]

    def _admit(self, name: str, prompt: tuple[int, ...]) -> None:
        expected = self.store.cached_prefix_length(prompt)
        pending = self.store.pending_prefix(prompt)
        admission = self.store.admit(name, prompt)
        assert admission.cached_tokens == expected < len(prompt)
        assert self.prefix_cache or expected == 0
        if pending:
            wanted = prompt[: expected + BLOCK]
            assert any(known.prompt[: len(wanted)] == wanted for known in self.open.values())
        rows = [self.history[r.writer_request_id, r.writer_step, r.writer_row] for r in admission.reused]
        assert [row.context for row in rows] == [prompt[: i + 1] for i in range(expected)]
        self.open[name] = Known(prompt, rows)

    def _release(self, name: str) -> None:
        self.store.release(name)
        del self.open[name]

    def _batch(self, parts: list[tuple[int, ...]], proposed: int) -> tuple[Batch, list[Row]]:
        """Segments for those requests that can grow, and the rows that they will write."""
        segments: list[Segment] = []
        written: list[Row] = []
        for (name, known), drawn in zip(self.open.items(), parts, strict=False):
            if not drawn or not self._grow(name, len(known.rows) + len(drawn)):
                continue
            tokens, first = known.next_tokens(drawn), len(known.rows)
            drafts = max(0, min(proposed, first + len(tokens) - max(first, len(known.prompt))))
            segments.append(Segment(name, SegmentKind.VERIFY, first, tokens, len(written), 0, proposed_tokens=drafts))
            for index in range(len(tokens)):
                context = known.context + tokens[: index + 1]
                written.append(Row(float(len(self.history) + len(written)), (name, self.steps, len(written)), context))
        batch = Batch(self.steps, tuple(segments))
        self.steps += 1
        return batch, written

    def _grow(self, name: str, length: int) -> bool:
        missing, free = self.store.missing_blocks(name, length), self.store.free_blocks
        grown = self.store.grow(name, length)
        assert grown == (missing <= free)
        assert self.store.free_blocks == (free - missing if grown else free)
        return grown

    def _run(self, batch: Batch, written: list[Row]) -> None:
        """Write and read all layers; every read must be the oracle's rows, this step's included."""
        self.store.begin_step(batch)
        self.history.update({row.writer: row for row in written})
        for layer in range(LAYERS):
            keys = arrays_of(written, layer)
            self.store.write(layer, keys, -keys)
            reads = [self.store.read(layer, index) for index in range(len(batch.segments))]
            for segment, (read_keys, read_values) in zip(batch.segments, reads, strict=True):
                own = written[segment.first_row : segment.first_row + segment.rows]
                expected = arrays_of(self.open[segment.request_id].rows + own, layer).transpose(1, 0, 2)[None]
                assert np.array(read_keys).tobytes() == expected.tobytes()
                assert np.array(read_values).tobytes() == (-expected).tobytes()


class MemoryOnMlx(PagedMemory):
    backend = MlxBackend


class MemoryWithoutPrefixCache(PagedMemory):
    prefix_cache = False


@pytest.mark.parametrize(
    ("machine", "examples"), [(PagedMemory, 150), (MemoryWithoutPrefixCache, 30), (MemoryOnMlx, 15)]
)
def test_paged_memory_agrees_with_the_oracle(machine: type[PagedMemory], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
