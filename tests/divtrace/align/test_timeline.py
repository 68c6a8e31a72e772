"""Which rows and decisions of two runs answer each other."""

from __future__ import annotations

from pathlib import Path

from divtrace.align.runs import RunPair
from divtrace.divergence.compare import diff_traces
from divtrace.origin.find import find_origins
from divtrace.trace.reader import open_trace
from engine.batch import SegmentKind
from engine.request import Request
from tests.divtrace.origin.worlds import World

PROMPT = (2, 3, 4, 5)


def preempted_run(drifting_step: int | None, recompute: bool = True) -> World:
    """Prefill, one decode, then (after a preemption) everything again and one more decode."""
    world = World(lambda step, _site, _rows: "gemm" if step == drifting_step else "gemv")
    world.submit(Request("r", PROMPT, 3))
    flow = world.flows["r"]
    world.step([("r", SegmentKind.PREFILL, PROMPT, 1)])
    world.step([("r", SegmentKind.DECODE, flow.tokens[-1:], 1)])
    if recompute:
        flow.memory.clear()
        world.step([("r", SegmentKind.RECOMPUTE, tuple(flow.tokens), 1)])
    else:
        world.step([("r", SegmentKind.DECODE, flow.tokens[-1:], 1)])
    world.finish("r")
    return world


def write_pair(folder: Path, a: World, b: World) -> tuple[Path, Path]:
    return a.write(folder / "a.h5"), b.write(folder / "b.h5")


def test_rows_read_before_a_preemption_are_compared_although_they_were_recomputed(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, preempted_run(None), preempted_run(0))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        (request,) = diff_traces(a, b).requests
        assert request.first_row_difference is not None
        assert request.first_row_difference.step_b == 0
        assert request.differing_kv_rows == 5
        assert request.kv_rows == 4 + 1 + 6


def test_a_decision_after_recompute_is_not_blamed_on_rows_that_it_no_longer_read(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, preempted_run(None), preempted_run(0))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        last = find_origins(a, b, "r", len(PROMPT) + 2)
        assert last.differing_rows == 0
        assert not last.origins
        before = find_origins(a, b, "r", len(PROMPT) + 1)
        assert [(o.step_b, o.rows) for o in before.origins] == [(0, 4)]


def test_a_recomputed_row_answers_the_row_of_a_run_without_preemption(tmp_path: Path) -> None:
    paths = write_pair(tmp_path, preempted_run(None, recompute=False), preempted_run(2))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        (request,) = diff_traces(a, b).requests
        assert request.unmatched_kv_rows == 0
        assert request.differing_kv_rows == 6
        result = find_origins(a, b, "r")
        assert {(o.step_a, o.step_b) for o in result.origins} == {(0, 2), (1, 2), (2, 2)}


def test_rejected_rows_are_no_difference(tmp_path: Path) -> None:
    def run(guess: int) -> World:
        world = World(lambda _step, _site, _rows: "gemv")
        world.submit(Request("r", PROMPT, 3))
        flow = world.flows["r"]
        world.step([("r", SegmentKind.PREFILL, PROMPT, 1)])
        right = world.true_token("r", 5)
        world.step([("r", SegmentKind.VERIFY, (flow.tokens[-1], right if guess else 0), 2)])
        if len(flow.tokens) < 7:
            world.step([("r", SegmentKind.DECODE, flow.tokens[-1:], 1)])
        world.finish("r")
        return world

    paths = write_pair(tmp_path, run(0), run(1))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = diff_traces(a, b)
        assert result.exit_status == 0
        (request,) = result.requests
        assert (request.compared_tokens, request.kv_rows, request.unmatched_kv_rows) == (3, 6, 0)
        assert (request.drafts_a.accepted_tokens, request.drafts_b.accepted_tokens) == (0, 1)


def test_a_row_rewritten_alone_is_judged_by_what_its_readers_saw(tmp_path: Path) -> None:
    """Position 1 is written again after 2 and 3 had read its first version: the second must not clear them."""

    def run(drifting: bool) -> World:
        world = World(lambda step, _site, _rows: "gemm" if drifting and step == 1 else "gemv")
        world.submit(Request("r", PROMPT, 2))
        flow = world.flows["r"]
        world.step([("r", SegmentKind.PREFILL, PROMPT[:1], 0)])
        world.step([("r", SegmentKind.PREFILL, PROMPT[1:2], 0)])
        world.step([("r", SegmentKind.PREFILL, PROMPT[2:], 1)])
        later = flow.memory[2:]
        del flow.memory[1:]
        world.step([("r", SegmentKind.RECOMPUTE, PROMPT[1:2], 0)])
        flow.memory.extend(later)
        world.step([("r", SegmentKind.DECODE, flow.tokens[-1:], 1)])
        world.finish("r")
        return world

    paths = write_pair(tmp_path, run(False), run(True))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        found = find_origins(a, b, "r", 5)
        assert [(o.step_b, o.first_position) for o in found.origins] == [(1, 1)]
        assert found.differing_rows == 3


def test_a_request_whose_trace_ends_before_its_first_token_still_has_rows_to_compare(tmp_path: Path) -> None:
    def run(drifting: bool) -> World:
        world = World(lambda _step, _site, _rows: "gemm" if drifting else "gemv")
        world.submit(Request("r", PROMPT, 2))
        world.step([("r", SegmentKind.PREFILL, PROMPT[:3], 0)])
        return world

    paths = write_pair(tmp_path, run(False), run(True))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        runs = RunPair(a, b)
        timeline = runs.timeline(runs.pairing.pairs[0])
        rows = runs.rows(timeline, runs.decisions(timeline))
        assert rows.positions.tolist() == [0, 1, 2]
        assert diff_traces(a, b).exit_status == 1
