"""`check_trace` finds each kind of contradiction, and nothing in a sound trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from divtrace.trace.check import check_trace
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.observer import Draft, LifecycleEvent, ReusedRow
from engine.request import SamplingParams
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment


def findings(path: Path) -> list[str]:
    with open_trace(path) as trace:
        return [str(finding) for finding in check_trace(trace)]


def add(name: str, row: int, amount: float = 1) -> Callable[[h5py.File], None]:
    def damage(file: h5py.File) -> None:
        dataset = file[name]
        if dataset.ndim == 2:
            dataset[row, 0] = dataset[row, 0] + np.asarray(amount).astype(dataset.dtype)
        else:
            dataset[row] = dataset[row] + np.asarray(amount).astype(dataset.dtype)

    return damage


def put(name: str, row: int, value: float, **beside: float) -> Callable[[h5py.File], None]:
    def damage(file: h5py.File) -> None:
        file[name][row] = value
        for column, other in beside.items():
            file[name.partition("/")[0]][column][row] = other

    return damage


def spoil_settings(file: h5py.File) -> None:
    text = int(file["requests/settings_string"][1])
    file["string_bytes/value"][int(file["strings/offset"][text])] = ord("[")


def feed(segment_row: int, token: int = 0) -> Callable[[h5py.File], None]:
    """Another id in place of an input token of a segment."""

    def damage(file: h5py.File) -> None:
        place = int(file["segments/token_offset"][segment_row]) + token
        file["token_lists/value"][place] = 31

    return damage


@pytest.mark.parametrize("level", [Level.TOKENS, Level.LOGITS, Level.KV])
def test_a_sound_trace_has_no_findings(tmp_path: Path, level: Level) -> None:
    assert findings(example_run().write(tmp_path / "run.h5", level)) == []


def test_an_empty_trace_has_no_findings(tmp_path: Path) -> None:
    assert findings(TraceBuilder().write(tmp_path / "run.h5")) == []


CONTRADICTIONS = [
    (add("steps/step", 2, -1), "steps row 2: step numbers have a gap"),
    (add("steps/row_offset", 1), "steps row 1: row_offset leaves a hole in rows"),
    (add("rows/step", 4), "rows row 4: belongs to another step"),
    (add("segments/rows", 5, -1), "steps row 3: its segments do not add up"),
    (add("segments/first_row", 2), "segments row 2: does not begin where"),
    (add("segments/wanted_logits", 1), "segments row 1: wants more logits"),
    (add("steps/head_rows", 1), "steps row 1: head_rows is not what"),
    (add("rows/position", 3), "rows row 3: position is not what its segment says"),
    (add("rows/request", 3), "rows row 3: request is not what its segment says"),
    (add("rows/key_hash", 6), "rows row 6: its digest does not follow"),
    (add("steps/digest", 1), "steps row 1: its digest does not follow"),
    (add("segments/first_position", 5), "step 3, request 'follower': reads positions 4 to 4, which nobody wrote"),
    (add("segments/first_position", 5, -1), "step 3, request 'follower': writes positions 3 to 3 a second time"),
    (add("drafts/accepted_tokens", 0), "step 2, request 'anchor': the draft tokens that it accepted"),
    (add("drafts/accepted_tokens", 0, 2), "step 2, request 'anchor': accepted 3 of 2"),
    (add("reused/writer_row", 1, 2), "reused row 1: names a row that its step does not have"),
    (add("reused/writer_row", 1), "reused row 1: the row that it names has another position"),
    (add("reused/writer_step", 0, 3), "reused row 0: was written after it was read"),
    (add("sampled/random_number", 0, 0.5), "sampled row 0: drew a random number"),
    (add("sampled/chosen", 1), "sampled row 1: chose another token than the largest logit"),
    (add("sampled/chosen_logit", 1), "sampled row 1: chosen_logit is not"),
    (add("sampled/top_values", 1, -9), "sampled row 1: top_values are not in order"),
    (add("sampled/top_ids", 1, 99), "sampled row 1: top_ids: no such token"),
    (add("token_lists/value", 20), "request 'anchor': the tokens it returned"),
    (add("sampled/position", 1, 3), "request 'anchor': its committed positions"),
    (add("rows/request", 3, 7), "rows/request"),
    (add("sampled/committed_token", 1), "sampled row 1: committed another token than the one that was chosen"),
    (add("sampled/row", 2), "sampled row 2: row is not one that a segment wants"),
    (add("sampled/gap", 2), "sampled row 2: gap is not the distance"),
    (add("sampled/gap", 2, np.nan), "sampled row 2: gap is not the distance"),
    (add("sampled/log_sum_exp", 2, -1), "sampled row 2: log_sum_exp cannot be"),
    (add("sampled/log_sum_exp", 2, 4), "sampled row 2: log_sum_exp cannot be"),
    (add("sampled/log_sum_exp", 2, np.nan), "sampled row 2: log_sum_exp cannot be"),
    (add("sampled/committed", 2, 6), "sampled row 2: committed is neither 0 nor 1"),
    (add("sampled/chosen", 4, 90), "sampled row 4: chosen: no such token"),
    (put("sampled/random_number", 1, 1.0), "sampled row 1: random_number is not from 0 to 1"),
    (add("segments/kind", 1, 5), "segments row 1: no such kind"),
    (feed(1), "step 1, request 'anchor': was fed other tokens"),
    (feed(2), "step 1, request 'follower': was fed other tokens"),
    (feed(3, 2), "step 2, request 'anchor': verifies other tokens than its drafter proposed"),
    (add("segments/proposed_tokens", 1, 2), "step 1, request 'anchor': 2 of its 1 input tokens"),
    (put("requests/id_string", 1, 0), "requests row 1: id_string occurs twice"),
    (put("completions/request", 1, 0), "completions row 1: request occurs twice"),
    (put("completions/reason_string", 0, 0), "completions row 0: reason_string: no such word"),
    (put("events/kind_string", 0, 0), "events row 0: kind_string: no such word"),
    (add("footer/step_count", 0), "footer row 0: step_count is not"),
    (add("steps/max_query_length", 2), "steps row 2: max_query_length is not"),
    (add("steps/max_key_length", 2), "steps row 2: max_key_length is not"),
    (put("steps/blocks_total", 1, 3, blocks_used=4), "steps row 1: uses more K/V blocks"),
    (add("steps/forward_s", 1, -9), "steps row 1: forward_s is no time"),
    (add("steps/forward_s", 1, np.nan), "steps row 1: forward_s is no time"),
    (add("plan_sites/rows", 0), "step 0: the sites of its plan have other row counts"),
    (put("steps/plan", 3, 1), "step 3: the sites of its plan have other row counts"),
    (spoil_settings, "requests row 1: its settings are not a JSON object"),
    (put("steps/flags", 1, 8), "steps row 1: flags: no such flag"),
    (put("steps/flags", 1, 4), "steps row 1: flags and audits do not agree"),
    (put("steps/flags", 1, 2), "steps row 1: flags and magnitudes do not agree"),
    (add("rows/key_magnitude", 4, np.inf), "steps row 1: flags and magnitudes do not agree"),
]


@pytest.mark.parametrize(("damage", "expected"), CONTRADICTIONS, ids=[text for _, text in CONTRADICTIONS])
def test_a_contradiction_is_found_in_its_place(
    tmp_path: Path, damage: Callable[[h5py.File], None], expected: str
) -> None:
    run = example_run()
    path = run.write(tmp_path / "run.h5")
    with h5py.File(path, "r+") as file:
        if expected.startswith("sampled row 0: drew"):
            file["sampled/random_number"][0] = 0.0
        damage(file)
    found = findings(path)
    assert any(expected in text for text in found), found


def test_sampled_requests_may_draw_and_choose_any_token(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("a", (1, 2), sampling=SamplingParams(temperature=1.0))
    run.runner_up[("a", 2)] = (3, -1.0)
    run.step(segment("a", SegmentKind.PREFILL, 0, (1, 2), chosen=(4,)), random_numbers=[0.7])
    assert findings(run.write(tmp_path / "run.h5")) == []


def test_a_preempted_request_may_write_its_rows_again(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("a", (1, 2))
    run.request("b", (1, 2))
    run.step(
        segment("a", SegmentKind.PREFILL, 0, (1, 2), chosen=(4,)),
        segment("b", SegmentKind.PREFILL, 0, (1, 2), chosen=(5,)),
    )
    run.step(
        segment("a", SegmentKind.DECODE, 2, (4,), chosen=(6,)),
        lifecycle=[LifecycleEvent("preempted", "b", 2)],
    )
    reused = [ReusedRow("b", 0, "a", 0, 0)]
    run.step(segment("b", SegmentKind.RECOMPUTE, 1, (2, 5), chosen=(7,), cached_tokens=1), reused=reused)
    assert findings(run.write(tmp_path / "run.h5")) == []


def test_rows_of_rejected_drafts_are_written_again(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("a", (1,))
    run.step(segment("a", SegmentKind.PREFILL, 0, (1,), chosen=(2,)))
    run.step(
        segment("a", SegmentKind.VERIFY, 1, (2, 3, 4), chosen=(9, 8, 7), committed=1, proposed_tokens=2),
        drafts=[Draft("a", 2, (3, 4), 0, 9, "lookup")],
    )
    run.step(segment("a", SegmentKind.DECODE, 2, (9,), chosen=(5,)))
    assert findings(run.write(tmp_path / "run.h5")) == []
