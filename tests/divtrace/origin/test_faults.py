"""Rows that do not belong where they were read, and tokens that do not follow from their logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from divtrace.origin.find import find_origins
from divtrace.origin.records import OriginKind
from divtrace.trace.reader import open_trace
from engine.batch import SegmentKind
from engine.request import Request
from tests.divtrace.origin.rewriting import append_audit
from tests.divtrace.origin.worlds import World
from tests.divtrace.trace.builders import TraceBuilder, segment

PROMPT = (2, 3, 4, 5)


def gemv(_step: int, _site: str, _rows: int) -> str:
    return "gemv"


def fed_run(fed: tuple[int, ...]) -> World:
    """Decodes after a prefill whose rows were computed from `fed` instead of the prompt."""
    world = World(gemv)
    world.submit(Request("r", PROMPT, 3))
    flow = world.flows["r"]
    world.step([("r", SegmentKind.PREFILL, fed, 1)])
    world.step([("r", SegmentKind.DECODE, flow.tokens[-1:], 1)])
    world.step([("r", SegmentKind.DECODE, flow.tokens[-1:], 1)])
    world.finish("r")
    return world


def test_a_row_computed_from_another_token_is_a_wrong_input(tmp_path: Path) -> None:
    paths = fed_run(PROMPT).write(tmp_path / "a.h5"), fed_run((2, 9, 4, 5)).write(tmp_path / "b.h5")
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        (origin,) = find_origins(a, b, "r", 6).origins
        assert origin.kind is OriginKind.WRONG_INPUT
        (fault,) = origin.faults
        assert (fault.run, fault.position, fault.expected, fault.found) == ("B", 1, "token 3", "token 9")


def test_a_block_taken_from_other_positions_is_a_wrong_input(tmp_path: Path) -> None:
    def run(stale: bool) -> World:
        world = World(gemv)
        prompt = (2, 2, 2, 2, 7)
        for name in ("writer", "reader"):
            world.submit(Request(name, prompt, 1))
        world.step([("writer", SegmentKind.PREFILL, prompt, 1)])
        memory = world.flows["writer"].memory
        reused = world.reuse("reader", [memory[0], memory[2 if stale else 1], memory[2], memory[3]])
        world.step([("reader", SegmentKind.PREFILL, prompt[4:], 1)], reused)
        world.finish("reader")
        return world

    paths = [run(stale).write(tmp_path / f"{stale}.h5") for stale in (False, True)]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b, "reader", 5)
        (origin,) = result.origins
        assert (origin.kind, origin.first_position) == (OriginKind.WRONG_INPUT, 1)
        (fault,) = origin.faults
        assert (fault.run, fault.kind, fault.expected, fault.found) == (
            "B",
            "wrong position",
            "position 1",
            "position 2",
        )


def test_a_block_of_another_prefix_is_a_wrong_input_even_where_its_own_token_is_right(tmp_path: Path) -> None:
    """The taken row has the right token and position; the row below it in its writer's memory has another token."""

    def run(stale: bool) -> World:
        world = World(gemv)
        prompt, other = (2, 3, 4, 5, 7), (9, 3, 4, 5, 7)
        world.submit(Request("right", prompt, 1))
        world.submit(Request("other", other, 1))
        world.submit(Request("reader", prompt, 1))
        world.step([("right", SegmentKind.PREFILL, prompt, 1), ("other", SegmentKind.PREFILL, other, 1)])
        right, wrong = world.flows["right"].memory, world.flows["other"].memory
        reused = world.reuse("reader", [right[0], (wrong if stale else right)[1]])
        world.step([("reader", SegmentKind.PREFILL, prompt[2:], 1)], reused)
        world.finish("reader")
        return world

    paths = [run(stale).write(tmp_path / f"{stale}.h5") for stale in (False, True)]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        (origin,) = find_origins(a, b, "reader", 5).origins
        assert (origin.kind, origin.request_b, origin.first_position) == (OriginKind.WRONG_INPUT, "other", 0)
        (fault,) = origin.faults
        assert (fault.run, fault.request, fault.expected, fault.found) == ("B", "other", "token 2", "token 9")


def test_a_position_that_nobody_wrote_is_reported(tmp_path: Path) -> None:
    def run(first: int) -> TraceBuilder:
        builder = TraceBuilder()
        builder.request("r", PROMPT, 2)
        builder.step(segment("r", SegmentKind.PREFILL, first, PROMPT[first:], chosen=(9,)))
        builder.step(segment("r", SegmentKind.DECODE, 4, (9,), chosen=(10,)))
        builder.finish("r")
        return builder

    paths = run(0).write(tmp_path / "a.h5"), run(2).write(tmp_path / "b.h5")
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        faults = find_origins(a, b, "r").faults
        assert [(f.run, f.kind, f.position) for f in faults] == [("B", "never written", 0), ("B", "never written", 1)]


def tie_run(chosen: int, logits: np.ndarray) -> TraceBuilder:
    builder = TraceBuilder()
    builder.request("r", PROMPT, 1)
    builder.logits[("r", 4)] = logits
    builder.step(segment("r", SegmentKind.PREFILL, 0, PROMPT, chosen=(chosen,)))
    builder.finish("r")
    return builder


def test_equal_logits_and_another_token_is_the_selection(tmp_path: Path) -> None:
    logits = np.linspace(-1, 0, 32, dtype=np.float32)
    logits[[3, 8]] = 5.0
    paths = tie_run(3, logits).write(tmp_path / "a.h5"), tie_run(8, logits).write(tmp_path / "b.h5")
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b)
        (origin,) = result.origins
        assert (origin.kind, origin.tensor) == (OriginKind.SELECTION, "token")
        assert result.logits_differ is False
        assert result.divergence is not None
        assert result.divergence.flip.explained is False


def test_a_token_against_its_own_logits_is_the_selection_even_where_logits_drifted(tmp_path: Path) -> None:
    logits = np.linspace(-1, 0, 32, dtype=np.float32)
    logits[3], logits[8] = 5.0, 4.0
    drifted = logits + np.float32(0.001)
    paths = tie_run(3, logits).write(tmp_path / "a.h5"), tie_run(8, drifted).write(tmp_path / "b.h5")
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        kinds = [(o.kind, o.tensor) for o in find_origins(a, b).origins]
        assert (OriginKind.SELECTION, "token") in kinds
        assert (OriginKind.UNEXPLAINED, "logits") in kinds


def test_a_row_that_changed_after_it_was_written_is_blamed_on_its_first_reader_only(tmp_path: Path) -> None:
    """Hashes at writing are equal; the audit of step 1 found position 2 of layer 0 changed, and every later step
    read it.
    """

    def run(changed: bool) -> TraceBuilder:
        builder = TraceBuilder()
        builder.request("r", PROMPT, 4)
        builder.step(segment("r", SegmentKind.PREFILL, 0, PROMPT, chosen=(9,)))
        for position in (4, 5, 6):
            builder.step(segment("r", SegmentKind.DECODE, position, (9,), chosen=(9,)))
            if changed:
                builder.content[("r", position, 1)] = 1000 + position
        builder.finish("r")
        return builder

    paths = run(False).write(tmp_path / "a.h5"), run(True).write(tmp_path / "b.h5")
    append_audit(paths[1], step=1, position=2, layer=0)
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b, "r", 7)
        (origin,) = result.origins
        assert (origin.kind, origin.step_b, origin.layer) == (OriginKind.CHANGED_AFTER_WRITING, 1, 1)
        assert [(f.kind, f.position, f.layer) for f in origin.faults] == [("changed", 2, 0)]
