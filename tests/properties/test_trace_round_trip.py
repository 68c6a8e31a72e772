"""Any run that the writer accepts reads back equal, however it is cut into flushes."""

from __future__ import annotations

import contextlib
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from divtrace.errors import TraceError
from divtrace.recorder.hashers import choose_hasher
from divtrace.recorder.recorder import Recorder
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.observer import Draft, LifecycleEvent, ReusedRow, StepEvent
from tests.divtrace.trace.builders import SegmentSpec, TraceBuilder, segment

TOKENS = st.integers(0, 31)
KINDS = st.sampled_from(list(SegmentKind))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def specs(draw: st.DrawFn, request_id: str) -> SegmentSpec:
    tokens = draw(st.lists(TOKENS, min_size=1, max_size=4))
    wanted = draw(st.integers(0, len(tokens)))
    chosen = tuple(draw(st.lists(TOKENS, min_size=wanted, max_size=wanted)))
    return segment(
        request_id,
        draw(KINDS),
        draw(st.integers(0, 40)),
        tokens,
        chosen=chosen,
        committed=draw(st.integers(0, wanted)),
        cached_tokens=draw(st.integers(0, 9)),
        proposed_tokens=draw(st.integers(0, len(tokens))),
    )


@st.composite
def runs(draw: st.DrawFn) -> TraceBuilder:
    run = TraceBuilder(layers=draw(st.integers(1, 3)), workload=draw(st.none() | st.just({"name": "drawn"})))
    ids = draw(st.lists(TEXTS, min_size=1, max_size=3, unique=True))
    for request_id in ids:
        run.request(request_id, draw(st.lists(TOKENS, min_size=1, max_size=5)))
    for step in range(draw(st.integers(0, 5))):
        packed = draw(st.lists(st.sampled_from(ids), max_size=3, unique=True))
        drafts = [Draft(i, 4, (1, 2), draw(st.integers(0, 2)), draw(st.none() | TOKENS), "lookup") for i in packed]
        run.step(
            *(draw(specs(request_id)) for request_id in packed),
            path=draw(st.sampled_from(["gemv", "gemm"])),
            drafts=drafts,
            lifecycle=[LifecycleEvent("preempted", ids[0], 3, draw(TEXTS))] if draw(st.booleans()) else [],
            reused=[ReusedRow(ids[-1], 2, ids[0], step, 1)] if draw(st.booleans()) else [],
        )
    return run


@settings(max_examples=30, deadline=None)
@given(
    runs(),
    st.integers(1, 4),
    st.sampled_from([Level.TOKENS, Level.LOGITS, Level.KV]),
    st.sampled_from(["xxh3_64", "multilinear_64"]),
)
def test_any_run_reads_back_equal(run: TraceBuilder, flush_steps: int, level: Level, hash_name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        recorder = Recorder(path, level, top_k=4, workload=run.workload, flush_steps=flush_steps, hash_name=hash_name)
        run.replay(recorder)
        with open_trace(path) as trace:
            assert trace.clean_end
            assert trace.header.workload == run.workload
            for event in run.events():
                assert_step_equals(trace, event)


def assert_step_equals(trace: Trace, event: StepEvent) -> None:
    step = event.batch.step
    ids = trace.request_ids()
    at = {name: trace.column("steps", name)[step] for name in ("packed_rows", "segment_offset", "row_offset")}
    assert at["packed_rows"] == event.batch.packed_rows
    for index, planned in enumerate(event.batch.segments):
        row = int(at["segment_offset"]) + index
        assert ids[trace.column("segments", "request")[row]] == planned.request_id
        for name in (
            "first_position",
            "rows",
            "first_row",
            "cached_tokens",
            "wanted_logits",
            "proposed_tokens",
        ):
            assert trace.column("segments", name)[row] == getattr(planned, name)
        offset = trace.column("segments", "token_offset")[row]
        assert tuple(trace.token_list(offset, planned.rows)) == planned.tokens
    assert_plan_equals(trace, event)
    assert_sampled_equals(trace, event)
    assert_drafts_equal(trace, event)
    rows = slice(int(at["row_offset"]), int(at["row_offset"]) + event.batch.packed_rows)
    assert trace.column("rows", "position")[rows].tolist() == event.batch.positions.tolist()
    if trace.header.level is Level.KV and event.kv_rows is not None:
        hashed = choose_hasher(trace.header.hash_name).begin(event.kv_rows, event.batch.packed_rows)()
        for name in ("digest", "key_hash", "value_hash", "key_magnitude", "value_magnitude"):
            assert trace.column("rows", name)[rows].tobytes() == getattr(hashed, name).tobytes()


def assert_plan_equals(trace: Trace, event: StepEvent) -> None:
    plan = trace.column("steps", "plan")[event.batch.step]
    first = int(trace.column("plans", "site_offset")[plan])
    assert trace.column("plans", "site_count")[plan] == len(event.plan)
    for row, site in enumerate(event.plan, start=first):
        for name in ("site", "operation", "path", "decided_by", "dtype", "model"):
            assert trace.string(trace.column("plan_sites", f"{name}_string")[row]) == getattr(site, name)
        for name in ("rows", "input_size", "output_size", "bits", "group_size"):
            assert trace.column("plan_sites", name)[row] == getattr(site, name)


def assert_sampled_equals(trace: Trace, event: StepEvent) -> None:
    first = int(trace.column("steps", "sampled_offset")[event.batch.step])
    assert trace.column("steps", "sampled_count")[event.batch.step] == len(event.sampled)
    for row, decided in enumerate(event.sampled, start=first):
        assert trace.column("sampled", "chosen")[row] == decided.chosen_token
        assert trace.column("sampled", "position")[row] == decided.position
        assert trace.column("sampled", "committed")[row] == decided.committed
        if trace.header.level.includes(Level.LOGITS):
            logits = event.logits[decided.head_row]
            ids = trace.column("sampled", "top_ids")[row]
            assert ids.tolist() == np.argsort(-logits, kind="stable")[:4].tolist()
            assert trace.column("sampled", "top_values")[row].tobytes() == logits[ids].tobytes()
            assert trace.column("sampled", "chosen_logit")[row] == logits[decided.chosen_token]


def assert_drafts_equal(trace: Trace, event: StepEvent) -> None:
    rows = np.flatnonzero(trace.column("drafts", "step") == event.batch.step)
    assert len(rows) == len(event.drafts)
    for row, draft in zip(rows, event.drafts, strict=True):
        offset = trace.column("drafts", "proposed_offset")[row]
        assert tuple(trace.token_list(offset, len(draft.proposed))) == draft.proposed
        expected = -1 if draft.next_token is None else draft.next_token
        assert trace.column("drafts", "next_token")[row] == expected


@settings(max_examples=20, deadline=None)
@given(runs(), st.integers(0, 6), st.data())
def test_a_run_cut_anywhere_reads_up_to_its_last_flush(
    run: TraceBuilder, flush_steps: int, data: st.DataObject
) -> None:
    events = run.events()
    kept = data.draw(st.integers(0, len(events)))
    flush_steps = max(flush_steps, 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.h5"
        recorder = StopsAfter(path, kept, flush_steps)
        with contextlib.suppress(StopIteration):
            run.replay(recorder, end=False)
        recorder.abandon()
        with open_trace(path) as trace:
            assert not trace.clean_end
            assert trace.step_count == kept // flush_steps * flush_steps
            for event in events[: trace.step_count]:
                assert_step_equals(trace, event)


class StopsAfter(Recorder):
    """A recorder whose run dies after some steps."""

    def __init__(self, path: Path, steps: int, flush_steps: int) -> None:
        super().__init__(path, Level.KV, top_k=4, flush_steps=flush_steps, flush_seconds=1e9)
        self._steps_left = steps

    def step_finished(self, event: StepEvent) -> None:
        if not self._steps_left:
            raise StopIteration
        self._steps_left -= 1
        super().step_finished(event)


@settings(max_examples=30, deadline=None)
@given(st.binary(max_size=4096), st.booleans())
def test_bytes_that_are_no_trace_end_in_one_sentence(raw: bytes, signed: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "junk.h5"
        path.write_bytes((b"\x89HDF\r\n\x1a\n" if signed else b"") + raw)
        with pytest.raises(TraceError, match=re.escape(str(path))):
            open_trace(path)
