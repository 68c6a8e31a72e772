"""A playback that starts in the middle, from known K/V rows, gives the bits of one that starts at step 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from divtrace.replay.replay import Replayer
from divtrace.replay.watchers import RowKeeper, Watcher
from divtrace.trace.reader import open_trace
from engine.engine import Engine
from engine.errors import PlaybackError, SettingsError
from engine.known import KnownStep
from engine.observer import StepEvent
from engine.request import Request
from engine.settings import EngineSettings
from tests.divtrace.proof.pairs import handoff, model, prompt, record


class Bytes(Watcher):
    """Logits and K/V bytes of every step that was computed."""

    def __init__(self) -> None:
        super().__init__(kv_rows=True)
        self.steps: dict[int, tuple[bytes, ...]] = {}

    def step_finished(self, event: StepEvent) -> None:
        rows = [array for layer in event.kv_rows or () for array in (layer.keys, layer.values)]
        self.steps[event.batch.step] = (event.logits.tobytes(), *(bytes(memoryview(array)) for array in rows))


SHARED = prompt(40, 32)
CASES: dict[str, tuple[list[Request], dict[str, Any]]] = {
    "paged": (handoff(168, 12), {}),
    "contiguous": (handoff(168, 12), {"kv": "contiguous", "kv_blocks": None}),
    "speculation": (handoff(63, 14), {"speculation": {"drafter": "self", "self_layers": 1, "tokens": 3}}),
    "chunks": (handoff(63, 6), {"token_budget": 7}),
    "prefix": (
        [Request("first", (*SHARED, 7), 4, ignore_eos=True), Request("second", (*SHARED, 9), 6, ignore_eos=True)],
        {"prefix_cache": True, "max_active": 1},
    ),
    "preemption": (
        [Request(f"r{i}", prompt(10 * i, 14), 20, ignore_eos=True) for i in range(3)],
        {"admission": "optimistic", "kv_blocks": 5, "max_active": 3, "max_model_length": 64},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_steps_behind_known_ones_come_out_as_from_the_beginning(name: str, tmp_path: Path) -> None:
    requests, settings = CASES[name]
    path = record(tmp_path / "run.h5", requests, **settings)
    with open_trace(path) as trace:
        player, keeper, whole = Replayer(trace, model()), RowKeeper(), Bytes()
        steps = player.watch((keeper, whole))
        if name == "preemption":
            assert "preempted" in [trace.string(int(kind)) for kind in trace.column("events", "kind_string")]
        if name == "prefix":
            assert trace.length("reused") > 0
        for first in {1, steps // 2, steps - 1}:
            partial = Bytes()
            known = {step: rows for step, rows in keeper.steps.items() if step < first}
            assert player.watch((partial,), known=known) == steps - first
            assert partial.steps == {step: seen for step, seen in whole.steps.items() if step >= first}


def test_known_rows_that_are_others_give_other_bits(tmp_path: Path) -> None:
    """The comparison above can fail: it sees values that moved a little."""
    path = record(tmp_path / "run.h5", handoff(168, 8))
    with open_trace(path) as trace:
        player, keeper, whole = Replayer(trace, model()), RowKeeper(), Bytes()
        player.watch((keeper, whole))
        rows = keeper.steps[0].kv_rows
        moved = replace(rows[0], values=rows[0].values * (1 + 2.0**-12))
        partial = Bytes()
        player.watch((partial,), known={0: KnownStep((moved, *rows[1:]))})
        assert partial.steps[1] != whole.steps[1]


def test_rows_of_another_batch_are_refused(tmp_path: Path) -> None:
    path = record(tmp_path / "run.h5", handoff(168, 6))
    with open_trace(path) as trace:
        player, keeper = Replayer(trace, model()), RowKeeper()
        player.watch((keeper,))
        with pytest.raises(PlaybackError, match=r"step 0: \d+ K/V rows are known, the batch has 12"):
            player.watch((Bytes(),), known={0: keeper.steps[2]})


def test_steps_cannot_be_known_of_a_schedule_that_is_still_to_be_made(tmp_path: Path) -> None:
    path = record(tmp_path / "run.h5", handoff(168, 4))
    with open_trace(path) as trace:
        keeper = RowKeeper()
        Replayer(trace, model()).watch((keeper,))
    with pytest.raises(SettingsError, match="pinned"):
        Engine(model(), EngineSettings(), known=keeper.steps)
