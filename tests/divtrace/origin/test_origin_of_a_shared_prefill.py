"""The article's case in small: a follower's prefill shares a batch with the anchor and is gone when a tie flips."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import Outcome
from divtrace.errors import DivtraceError
from divtrace.origin.find import find_origins
from divtrace.origin.records import Circumstance, OriginKind, SiteClass
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.request import Request
from tests.divtrace.origin.schedules import Schedule, serve
from tests.divtrace.origin.worlds import PathRule, World

ANCHOR = Request("anchor", (3, 4, 5), 14)
FOLLOWER = Request("follower", (6, 7, 8, 9, 10, 11), 3)
TIE = ("anchor", 9)


def rule(_step: int, _site: str, rows: int) -> str:
    return "gemv" if rows <= 4 else "gemm"


def gemv(_step: int, _site: str, _rows: int) -> str:
    return "gemv"


def write_arm(
    folder: Path,
    name: str,
    max_active: int,
    level: Level = Level.KV,
    path_rule: PathRule = rule,
    follower: Request = FOLLOWER,
) -> tuple[Path, World]:
    world = World(path_rule, ties=frozenset({TIE}), settings={"scheduler": {"max_active": max_active}})
    schedule = Schedule(max_active=max_active, arrivals={"follower": 2})
    serve(world, [ANCHOR, follower], schedule)
    return world.write(folder / f"{name}.h5", level), world


@pytest.fixture
def flipped(tmp_path: Path) -> Iterator[tuple[Trace, Trace]]:
    """Serial against batched admission; the tie at `TIE` flips."""
    serial, _ = write_arm(tmp_path, "serial", 1)
    batched, _ = write_arm(tmp_path, "batched", 2)
    with open_trace(serial) as a, open_trace(batched) as b:
        yield a, b


def test_the_shared_batch_is_blamed_and_not_the_step_of_the_decision(flipped: tuple[Trace, Trace]) -> None:
    result = find_origins(*flipped)
    assert result.flipped
    assert (result.request_a, result.position) == TIE
    assert len(result.origins) == 1
    origin = result.origins[0]
    assert origin.kind is OriginKind.KERNEL_PATH
    assert [(s.request, s.rows) for s in origin.batch_b.segments] == [("anchor", 1), ("follower", 6)]
    assert [(s.request, s.rows) for s in origin.batch_a.segments] == [("anchor", 1)]
    assert (origin.layer, origin.first_position, origin.tensor) == (0, 4, "both")
    assert origin.steps_before_b == result.step_b - origin.step_b == 4
    assert {s.site for s in origin.suspects} == {f"model.layers.0.self_attn.{name}_proj" for name in "kv"}
    assert Circumstance.SHARED_BATCH in origin.circumstances
    assert result.carriers.positions[0].first == 5


def test_the_crossing_names_threshold_rows_and_who_joined(flipped: tuple[Trace, Trace]) -> None:
    (layers,) = find_origins(*flipped).origins[0].crossings
    assert (layers.limit, layers.over, layers.rows_a, layers.rows_b) == (4, "B", 1, 7)
    assert [(s.request, s.kind, s.rows) for s in layers.joined] == [("follower", "prefill", 6)]
    assert layers.rows_without_joined == 1
    assert layers.site_classes == (SiteClass.QKV, SiteClass.OUTPUT_PROJECTION, SiteClass.MLP)


def test_a_neighbour_that_left_before_the_decision_is_said_to_have_finished(flipped: tuple[Trace, Trace]) -> None:
    result = find_origins(*flipped)
    neighbour = next(n for n in result.neighbours if n.run == "B")
    assert neighbour.request == "follower"
    assert neighbour.finished_before
    assert neighbour.finished_step is not None
    assert neighbour.finished_step < result.step_b


def test_the_origin_is_the_first_candidate_with_all_sites_that_changed(flipped: tuple[Trace, Trace]) -> None:
    result = find_origins(*flipped)
    first = result.candidates[0]
    assert first.is_origin
    assert (first.step_a, first.step_b) == (result.origins[0].step_a, result.origins[0].step_b)
    assert all((s.path_a, s.path_b) == ("gemv", "gemm") for s in first.sites)
    assert len(first.sites) == 5 * 3


def test_diff_of_the_pair_finds_the_first_row_and_the_setting(flipped: tuple[Trace, Trace]) -> None:
    result = diff_traces(*flipped)
    anchor = next(r for r in result.requests if r.id_a == "anchor")
    assert anchor.first_row_difference is not None
    assert (anchor.first_row_difference.position, anchor.first_row_difference.layer) == (4, 0)
    assert [d.path for d in result.inputs.differences] == ["settings.scheduler.max_active"]
    assert result.exit_status == 1


def test_forced_gemv_makes_the_pair_equal(tmp_path: Path) -> None:
    arms = [write_arm(tmp_path, name, limit, path_rule=gemv)[0] for name, limit in (("a", 1), ("b", 2))]
    with open_trace(arms[0]) as a, open_trace(arms[1]) as b:
        result = diff_traces(a, b)
        assert result.outcome is Outcome.NONE_SEEN
        assert result.exit_status == 0
        with pytest.raises(DivtraceError, match="no difference seen in 17 tokens of 2 requests"):
            find_origins(a, b)


@pytest.mark.parametrize("level", [Level.TOKENS, Level.LOGITS])
def test_without_kv_hashes_the_answer_says_what_to_record(tmp_path: Path, level: Level) -> None:
    arms = [write_arm(tmp_path, name, limit, level)[0] for name, limit in (("a", 1), ("b", 2))]
    with open_trace(arms[0]) as a, open_trace(arms[1]) as b:
        result = find_origins(a, b, "anchor", TIE[1])
        assert not result.origins
        assert all("--level kv" in words for words in result.missing)
        assert result.candidates
        assert result.logits_differ is (None if level is Level.TOKENS else True)


def test_unknown_requests_and_positions_are_refused_in_one_sentence(flipped: tuple[Trace, Trace]) -> None:
    with pytest.raises(DivtraceError, match="no request 'nobody' in these traces"):
        find_origins(*flipped, "nobody")
    with pytest.raises(DivtraceError, match="use one from 3 to"):
        find_origins(*flipped, "anchor", 1000)


def test_a_path_changed_at_the_head_of_the_deciding_step_is_the_decisions_own_origin(tmp_path: Path) -> None:
    def head_rule(step: int, site: str, _rows: int) -> str:
        return "gemm" if (step, site) == (6, "lm_head") else "gemv"

    worlds = [serve(World(path_rule), [ANCHOR], Schedule()) for path_rule in (gemv, head_rule)]
    paths = [world.write(tmp_path / f"{name}.h5") for name, world in zip("ab", worlds, strict=True)]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b, "anchor", worlds[1].flows["anchor"].decided[6].position)
        (origin,) = result.origins
        assert (origin.tensor, origin.layer, origin.kind) == ("logits", 3, OriginKind.KERNEL_PATH)
        assert [s.site for s in origin.suspects] == ["lm_head"]
        assert result.differing_rows == 0


@pytest.mark.parametrize(
    ("site", "layer", "tensor"),
    [
        ("model.layers.1.self_attn.k_proj", 1, "key"),
        ("model.layers.1.self_attn.v_proj", 1, "value"),
        ("model.layers.1.self_attn.q_proj", 2, "both"),
        ("model.layers.0.self_attn.o_proj", 1, "both"),
        ("model.layers.1.mlp.up_proj", 2, "both"),
        ("model.layers.2.mlp.up_proj", 3, "logits"),
    ],
)
@pytest.mark.parametrize("silent", [False, True])
def test_one_site_changed_in_one_step_is_found_with_its_layer(
    tmp_path: Path, site: str, layer: int, tensor: str, silent: bool
) -> None:
    planted = 5

    def planted_rule(step: int, name: str, _rows: int) -> str:
        return "gemm" if (step, name) == (planted, site) and not silent else "gemv"

    plain, changed = World(gemv), World(planted_rule)
    if silent:
        changed.silent_changes.add((planted, site))
    paths = [serve(w, [ANCHOR], Schedule()).write(tmp_path / f"{n}.h5") for n, w in (("a", plain), ("b", changed))]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        decision = planted if tensor == "logits" else planted + 4
        result = find_origins(a, b, "anchor", changed.flows["anchor"].decided[decision].position)
        (origin,) = result.origins
        assert (origin.step_a, origin.step_b, origin.layer, origin.tensor) == (planted, planted, layer, tensor)
        assert origin.kind is (OriginKind.UNEXPLAINED if silent else OriginKind.KERNEL_PATH)
        assert silent or [s.site for s in origin.suspects] == [site]
        assert a.header.layers == 3


def test_a_prefix_taken_from_two_writers_is_followed_into_what_each_of_them_read(tmp_path: Path) -> None:
    """In B the second block's writer had drifted in the FIRST block, which the blamed request took from somebody
    else.
    """

    def run(drifting: bool) -> World:
        world = World(lambda step, _site, _rows: "gemm" if drifting and step == 1 else "gemv")
        prompt = (2, 3, 4, 5, 6, 7, 8, 9, 10)
        for name in ("one", "two"):
            world.submit(Request(name, prompt, 1))
        world.step([("one", SegmentKind.PREFILL, prompt[:4], 0)])
        world.step([("two", SegmentKind.PREFILL, prompt[:4], 0)])
        world.step([("two", SegmentKind.PREFILL, prompt[4:8], 0)])
        world.submit(Request("reader", prompt, 1))
        shared = [*world.flows["one"].memory[:4], *world.flows["two"].memory[4:8]]
        reused = world.reuse("reader", shared)
        world.step([("reader", SegmentKind.PREFILL, prompt[8:], 1)], reused, cached=8)
        world.finish("reader")
        return world

    paths = [run(drifting).write(tmp_path / f"{drifting}.h5") for drifting in (False, True)]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b, "reader")
        (origin,) = result.origins
        assert (origin.request_b, origin.step_b, origin.first_position, origin.rows) == ("two", 1, 0, 4)
        assert result.differing_rows == 5
        assert not result.faults


def test_rows_that_one_run_took_over_and_the_other_computed_are_a_prefix_reuse(tmp_path: Path) -> None:
    prompt = (2, 3, 4, 5, 6, 7, 8, 9, 10)

    def run(warm: bool) -> World:
        world = World(rule)
        world.submit(Request("writer", prompt, 1))
        world.step([("writer", SegmentKind.PREFILL, prompt[:8], 0)])
        world.submit(Request("reader", prompt, 1))
        if warm:
            reused = world.reuse("reader", world.flows["writer"].memory[:8])
        else:
            reused = ()
            world.step([("reader", SegmentKind.PREFILL, prompt[:4], 0)])
            world.step([("reader", SegmentKind.PREFILL, prompt[4:8], 0)])
        world.step([("reader", SegmentKind.PREFILL, prompt[8:], 1)], reused, cached=8 if warm else 0)
        world.finish("reader")
        return world

    paths = [run(warm).write(tmp_path / f"{warm}.h5") for warm in (False, True)]
    with open_trace(paths[0]) as cold, open_trace(paths[1]) as warm:
        origin = find_origins(cold, warm, "reader").origins[0]
        assert (origin.request_a, origin.request_b) == ("reader", "writer")
        assert Circumstance.PREFIX_REUSE in origin.circumstances


def test_a_neighbour_that_still_runs_is_not_said_to_have_finished(tmp_path: Path) -> None:
    longer = Request("follower", FOLLOWER.prompt, 12)
    arms = [write_arm(tmp_path, name, limit, follower=longer)[0] for name, limit in (("a", 1), ("b", 2))]
    with open_trace(arms[0]) as a, open_trace(arms[1]) as b:
        (neighbour,) = find_origins(a, b).neighbours
        assert (neighbour.request, neighbour.finished_before) == ("follower", False)
        assert neighbour.finished_step is not None


def test_a_longer_segment_of_its_own_is_not_blamed_on_somebody_who_joined(tmp_path: Path) -> None:
    worlds = [serve(World(rule), [ANCHOR], Schedule(speculate=count)) for count in (0, 5)]
    paths = [world.write(tmp_path / f"{name}.h5") for name, world in zip("ab", worlds, strict=True)]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b, "anchor", 8)
        crossings = result.origins[0].crossings
        assert {(c.joined, c.over, c.rows_b, c.rows_without_joined) for c in crossings} == {((), "B", 6, 6)}
        assert {site_class for c in crossings for site_class in c.site_classes} >= {SiteClass.QKV, SiteClass.HEAD}
        assert Circumstance.SPECULATION in result.origins[0].circumstances
        assert result.neighbours == ()


def test_a_changed_path_below_rows_that_stayed_equal_is_no_suspect(tmp_path: Path) -> None:
    output, key = "model.layers.0.self_attn.o_proj", "model.layers.0.self_attn.k_proj"

    def planted_rule(step: int, name: str, _rows: int) -> str:
        return {output: "gemm", key: "another gemv"}.get(name, "gemv") if step == 5 else "gemv"

    paths = [
        serve(World(r), [ANCHOR], Schedule()).write(tmp_path / f"{n}.h5") for n, r in (("a", gemv), ("b", planted_rule))
    ]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        result = find_origins(a, b, "anchor", 12)
        (origin,) = result.origins
        assert [s.site for s in origin.suspects] == [output]
        assert origin.site_classes == (SiteClass.OUTPUT_PROJECTION,)
        assert {s.site for s in result.candidates[0].sites} == {output, key}


def test_the_same_path_over_another_row_count_is_a_selector_input(tmp_path: Path) -> None:
    """`native` hides its own choice: only the rows tell that the call was another one."""

    def native(_step: int, _site: str, _rows: int) -> str:
        return "native"

    worlds = [World(native), World(native)]
    worlds[1].silent_changes.add((2, "model.layers.1.self_attn.k_proj"))
    for world, limit in zip(worlds, (1, 2), strict=True):
        serve(world, [ANCHOR, FOLLOWER], Schedule(max_active=limit, arrivals={"follower": 2}))
    paths = [world.write(tmp_path / f"{name}.h5") for name, world in zip("ab", worlds, strict=True)]
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        (origin,) = find_origins(a, b, "anchor", 9).origins
        assert origin.kind is OriginKind.SELECTOR_INPUT
        assert [(s.site, s.rows_a, s.rows_b) for s in origin.suspects] == [("model.layers.1.self_attn.k_proj", 1, 7)]


def test_another_place_in_an_equal_call_is_a_selector_input(tmp_path: Path) -> None:
    """Tiled kernels give other bits at the remainder of a tile: same path, same rows, another place in the batch."""

    def run(first: str, second: str, silent: bool) -> World:
        world = World(lambda _step, _site, _rows: "gemm")
        if silent:
            world.silent_changes.add((0, "model.layers.1.mlp.up_proj"))
        prompts = {"left": (2, 3, 4), "right": (5, 6, 7)}
        for name, prompt in prompts.items():
            world.submit(Request(name, prompt, 1))
        world.step([(name, SegmentKind.PREFILL, prompts[name], 1) for name in (first, second)])
        return world

    paths = run("left", "right", False).write(tmp_path / "a.h5"), run("right", "left", True).write(tmp_path / "b.h5")
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        (origin,) = find_origins(a, b, "left").origins
        assert (origin.kind, origin.layer) == (OriginKind.SELECTOR_INPUT, 2)
        assert (origin.packed_row_a, origin.packed_row_b) == (0, 3)
        assert {s.changed for s in origin.suspects} == {"place"}
