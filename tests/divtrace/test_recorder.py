"""The recorder against hand-made steps: what it writes is what happened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash

from divtrace.align.index import TraceIndex
from divtrace.errors import EvidenceError, TraceError
from divtrace.recorder import interning
from divtrace.recorder.recorder import Recorder
from divtrace.recorder.step_columns import StepFlag
from divtrace.trace.check import check_trace
from divtrace.trace.cut import cut_trace
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.observer import LayerRows, RunEnding, StepEvent
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment


def read(tmp_path: Path, run: TraceBuilder, level: Level = Level.KV) -> Trace:
    return open_trace(run.write(tmp_path / "run.h5", level))


def test_outputs_are_the_committed_tokens_and_not_the_rejected_one(tmp_path: Path) -> None:
    with read(tmp_path, example_run()) as trace:
        assert trace.request_ids() == ["anchor", "follower"]
        assert trace.output(0).tolist() == [9, 10, 11, 13]
        assert trace.output(1).tolist() == [20, 21]
        assert trace.prompt(1).tolist() == [5, 6, 8, 4]


def test_a_rejected_row_stays_visible_as_not_committed(tmp_path: Path) -> None:
    with read(tmp_path, example_run()) as trace:
        rejected = trace.column("sampled", "committed") == 0
        assert trace.column("sampled", "chosen")[rejected].tolist() == [14]
        assert trace.column("drafts", "accepted_tokens").tolist() == [1]
        assert trace.token_list(trace.column("drafts", "proposed_offset")[0], 2).tolist() == [11, 12]


def test_hashes_are_of_each_rows_own_bytes(tmp_path: Path) -> None:
    run = example_run()
    with read(tmp_path, run) as trace:
        row = 3
        position = int(trace.column("rows", "position")[row])
        for layer in range(run.layers):
            expected = xxhash.xxh3_64_intdigest(run.kv_row(("anchor", position, layer), "k").tobytes())
            assert int(trace.column("rows", "key_hash")[row, layer]) == expected
        written = np.abs(run.kv_row(("anchor", position, 1), "v")).max()
        assert trace.column("rows", "value_magnitude")[row, 1] == written


def test_one_changed_kv_row_changes_its_digest_and_its_steps_digest_and_no_other(tmp_path: Path) -> None:
    changed = example_run()
    changed.content[("anchor", 3, 1)] = 7
    with (
        open_trace(example_run().write(tmp_path / "a.h5")) as a,
        open_trace(changed.write(tmp_path / "b.h5")) as b,
    ):
        assert np.flatnonzero(a.column("rows", "digest") != b.column("rows", "digest")).tolist() == [3]
        assert np.flatnonzero(a.column("steps", "digest") != b.column("steps", "digest")).tolist() == [1]
        differing = a.column("rows", "key_hash") != b.column("rows", "key_hash")
        assert np.argwhere(differing).tolist() == [[3, 1]]


def test_equal_content_hashes_equal_for_different_requests(tmp_path: Path) -> None:
    run = TraceBuilder()
    for request_id in ("a", "b"):
        run.request(request_id, (1,))
        run.content[(request_id, 0)] = 5
    run.step(segment("a", SegmentKind.PREFILL, 0, (1,)), segment("b", SegmentKind.PREFILL, 0, (1,)))
    with read(tmp_path, run) as trace:
        assert len(set(trace.column("rows", "digest").tolist())) == 1


def test_segments_carry_their_tokens_in_row_order(tmp_path: Path) -> None:
    with read(tmp_path, example_run()) as trace:
        offsets, rows = trace.column("segments", "token_offset"), trace.column("segments", "rows")
        tokens = [trace.token_list(offset, count).tolist() for offset, count in zip(offsets, rows, strict=True)]
        assert tokens == [[5, 6, 7], [9], [8], [10, 11, 12], [4], [20]]


def test_equal_plans_are_stored_once(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("a", (1,))
    run.step(segment("a", SegmentKind.PREFILL, 0, (1,), chosen=(2,)))
    for position in range(1, 5):
        run.step(segment("a", SegmentKind.DECODE, position, (2,), chosen=(2,)), path="gemm")
    with read(tmp_path, run) as trace:
        assert trace.length("plans") == 2
        assert trace.column("steps", "plan").tolist() == [0, 1, 1, 1, 1]


def test_plans_whose_records_never_return_are_interned_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interning, "KEPT_PLANS", 2)
    recorder = Recorder(tmp_path / "run.h5")
    run = TraceBuilder()
    run.request("a", (1,))
    paths = ["gemv", "gemm", "tile-8"] * 4
    for position, path in enumerate(paths):
        run.step(segment("a", SegmentKind.PREFILL, position, (2,), chosen=(2,)), path=path)
    run.replay(recorder)
    assert len(recorder._interner._same_plans) <= 2
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.length("plans") == 3
        assert trace.column("steps", "plan").tolist() == [0, 1, 2] * 4


def test_every_token_that_occurs_has_its_text(tmp_path: Path) -> None:
    with read(tmp_path, example_run()) as trace:
        tokens = {*trace.column("token_lists", "value"), *trace.column("sampled", "top_ids").ravel()}
        assert {token: trace.token_text(token) for token in tokens} == {
            token: f"<{token}>".encode() for token in tokens
        }
        assert trace.token_text(31337) == b""


def test_draft_forwards_are_recorded_beside_the_target(tmp_path: Path) -> None:
    run = example_run()
    with read(tmp_path, run) as trace:
        assert trace.column("draft_forwards", "step").tolist() == [2]
        assert trace.column("draft_rows", "position").tolist() == [4]
        expected = xxhash.xxh3_64_intdigest(run.kv_row(("draft", "anchor", 4, 0), "k").tobytes())
        assert int(trace.column("draft_layers", "key_hash")[0]) == expected
        model = trace.string(trace.column("plan_sites", "model_string")[10])
        assert model == "draft"


@pytest.mark.parametrize("level", [Level.TOKENS, Level.LOGITS, Level.KV])
def test_a_level_holds_its_columns_and_names_what_it_lacks(tmp_path: Path, level: Level) -> None:
    with read(tmp_path, example_run(), level) as trace:
        assert trace.output(0).tolist() == [9, 10, 11, 13]
        assert trace.has_column("sampled", "gap") == level.includes(Level.LOGITS)
        if level is Level.KV:
            assert trace.column("rows", "key_hash").shape == (10, 2)
        else:
            with pytest.raises(EvidenceError, match=f"level {level}; record with --level kv"):
                trace.column("rows", "key_hash")


def test_only_levels_that_hold_kv_ask_the_engine_for_it(tmp_path: Path) -> None:
    assert Recorder(tmp_path / "a.h5", Level.KV).needs.kv_rows
    assert not Recorder(tmp_path / "a.h5", Level.LOGITS).needs.kv_rows


class Damaging(Recorder):
    """Passes events on with one number of them replaced."""

    spoiled = np.float32(np.nan)

    def step_finished(self, event: StepEvent) -> None:
        if event.batch.step == 1:
            assert event.kv_rows is not None
            keys = np.array(event.kv_rows[1].keys)
            keys[0, 0, 0] = self.spoiled
            logits = np.array(event.logits)
            logits[0, 3] = -self.spoiled
            layers = (event.kv_rows[0], LayerRows(keys, event.kv_rows[1].values))
            event = replace(event, kv_rows=layers, logits=logits, processed_logits=logits)
        super().step_finished(event)


class DamagingWithInfinity(Damaging):
    spoiled = np.float32(np.inf)


@pytest.mark.parametrize("recorder", [Damaging, DamagingWithInfinity])
@pytest.mark.parametrize("level", [Level.TOKENS, Level.KV])
def test_not_finite_numbers_are_flagged_in_their_step(tmp_path: Path, recorder: type[Damaging], level: Level) -> None:
    example_run().replay(recorder(tmp_path / "run.h5", level))
    expected = StepFlag.LOGITS_NOT_FINITE
    if level is Level.KV:
        expected |= StepFlag.KV_NOT_FINITE
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.column("steps", "flags").tolist() == [0, expected, 0, 0]


def test_a_run_that_skips_a_step_is_refused(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.h5")
    run = example_run()
    recorder.run_started(run.info())
    with pytest.raises(TraceError, match="step 1 came after 0 steps"):
        recorder.step_finished(run.events()[1])


def test_an_existing_trace_is_not_overwritten_unless_asked(tmp_path: Path) -> None:
    path = example_run().write(tmp_path / "run.h5")
    before = path.read_bytes()
    with pytest.raises(TraceError, match="exists"):
        example_run().write(path)
    assert path.read_bytes() == before
    example_run().write(path, level=Level.TOKENS, overwrite=True)
    with open_trace(path) as trace:
        assert trace.header.level is Level.TOKENS


def test_ctrl_c_ends_a_trace_cleanly_and_says_so(tmp_path: Path) -> None:
    example_run().replay(Recorder(tmp_path / "run.h5"), RunEnding(interrupted=True))
    with open_trace(tmp_path / "run.h5") as trace:
        assert (trace.clean_end, trace.interrupted, trace.failure) == (True, True, "")
        assert trace.ending() == "interrupted at step 4"


def test_an_error_that_ends_a_run_stands_in_the_trace_in_its_own_words(tmp_path: Path) -> None:
    example_run().replay(Recorder(tmp_path / "run.h5"), RunEnding(failure="request 'é' cannot be scheduled."))
    with open_trace(tmp_path / "run.h5") as trace:
        assert (trace.clean_end, trace.interrupted) == (True, False)
        assert trace.ending() == "failed at step 4: request 'é' cannot be scheduled."
        assert check_trace(trace) == []
        cut = cut_trace(trace, tmp_path / "cut.h5", 4)
    with open_trace(cut) as trace:
        assert trace.failure == "request 'é' cannot be scheduled."


def test_a_sentence_from_a_trace_cannot_steer_a_terminal(tmp_path: Path) -> None:
    example_run().replay(Recorder(tmp_path / "run.h5"), RunEnding(failure="\x1b[31mred\nline\u202e" + "é" * 5000))
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.ending().startswith("failed at step 4: \\x1b[31mred\\nline\\u202eé")
        assert trace.ending().isprintable()
        assert len(trace.ending()) < 2100


def test_outputs_are_what_a_playback_committed_and_not_what_its_logits_gave(tmp_path: Path) -> None:
    run = example_run()
    recorder = Pinning(tmp_path / "run.h5")
    run.replay(recorder)
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.output(0).tolist() == [9, 30, 11, 13]
        assert trace.column("sampled", "chosen")[:2].tolist() == [9, 10]
        assert trace.token_text(30) == b"<30>"
        assert TraceIndex(trace).output(0).tolist() == [9, 30, 11, 13]


class Pinning(Recorder):
    """Pins the decision of step 1 to another token, as a playback does."""

    def step_finished(self, event: StepEvent) -> None:
        if event.batch.step == 1:
            event = replace(event, sampled=tuple(replace(row, pinned_token=30) for row in event.sampled))
        super().step_finished(event)


def test_a_trace_from_before_pinned_tokens_were_recorded_reads_all_the_same(tmp_path: Path) -> None:
    path = example_run().write(tmp_path / "run.h5")
    with h5py.File(path, "r+") as file:
        for column in ("sampled/committed_token", "footer/failure_offset", "footer/failure_count"):
            del file[column]
    with open_trace(path) as trace:
        assert trace.output(0).tolist() == [9, 10, 11, 13]
        assert trace.ending() == "complete, 4 steps"


def test_an_abandoned_trace_shows_what_was_flushed(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run.h5", flush_steps=2)
    example_run().replay(recorder, end=False)
    recorder.abandon()
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.ending() == "ended early at step 4"
        assert trace.output(0).tolist() == [9, 10, 11, 13]


def test_settings_that_are_not_json_are_named(tmp_path: Path) -> None:
    run = TraceBuilder(settings={"when": object()})
    with pytest.raises(TraceError, match="not JSON-ready"):
        run.write(tmp_path / "run.h5")
