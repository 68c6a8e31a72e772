"""What `divtrace show` prints and answers, on small traces written by the real recorder."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console, RenderableType

from divtrace.commands.show import command as show_command
from divtrace.errors import DivtraceError
from divtrace.show import (
    requests_json,
    run_json,
    show_requests,
    show_run,
    show_step,
    show_steps,
    show_timeline,
    step_json,
    steps_json,
    timeline_json,
)
from divtrace.show.render_run import run_facts
from divtrace.trace.reader import Trace, open_trace
from divtrace.trace.schema import Level
from engine.batch import SegmentKind
from engine.observer import LifecycleEvent, QueueState
from tests.divtrace.trace import builders
from tests.divtrace.trace.builders import TraceBuilder, example_run, segment


@pytest.fixture
def example(tmp_path: Path) -> Trace:
    return open_trace(example_run().write(tmp_path / "example.h5"))


def printed(renderable: RenderableType, width: int = 80) -> str:
    """What a pipe of `width` columns gets."""
    stream = io.StringIO()
    Console(file=stream, width=width, highlight=False).print(renderable)
    return stream.getvalue()


def test_every_view_fits_into_80_columns_and_is_plain_text(example: Trace) -> None:
    views = [show_run(example), show_requests(example), show_steps(example), show_timeline(example, 80)]
    views += [show_step(example, step) for step in range(example.step_count)]
    for view in views:
        text = printed(view)
        assert "\x1b" not in text
        assert max(map(len, text.splitlines())) <= 80


def test_at_60_columns_every_word_of_a_run_is_whole(tmp_path: Path) -> None:
    run = TraceBuilder(layers=1)
    for name in ("resident", "visitor"):
        run.request(name, (1, 2), max_tokens=2)
    both = [segment(name, SegmentKind.RECOMPUTE, 0, (1, 2), chosen=(4,)) for name in ("resident", "visitor")]
    run.step(*both, path="gemm-f16-operands")
    trace = open_trace(run.write(tmp_path / "run.h5"))
    for view, words in (
        (show_requests(trace), {"request", "prompt", "output", "steps", "ended", "unfinished"}),
        (show_steps(trace), {"gemm-f16-operands", "resident", "visitor", "recompute", "forward"}),
        (show_step(trace, 0), {"gemm-f16-operands", "resident", "recompute", "positions", "committed", "sites"}),
    ):
        lines = printed(view, 60).splitlines()
        assert max(map(len, lines)) <= 60
        assert words <= {word.strip(",") for line in lines for word in line.split()}


def test_a_narrow_table_of_requests_has_their_texts_below_it(example: Trace, tmp_path: Path) -> None:
    lines = [line.strip() for line in printed(show_requests(example), 60).splitlines()]
    below = lines[lines.index("Output texts") + 1 :]
    assert [line.split()[0] for line in below] == ["anchor", "follower"]
    run = TraceBuilder(layers=1)
    run.request("resident", (1, 2), max_tokens=60)
    run.step(segment("resident", SegmentKind.PREFILL, 0, (1, 2), chosen=(4,)), path="gemm")
    for step in range(1, 60):
        run.step(segment("resident", SegmentKind.DECODE, step + 1, (4,), chosen=(4,)))
    last = printed(show_requests(open_trace(run.write(tmp_path / "talk.h5"))), 60).splitlines()[-1]
    assert last.startswith("resident  ")
    assert "first" not in lines[1]


def test_a_narrow_step_says_below_a_path_what_decided_it(example: Trace) -> None:
    lines = [line.strip() for line in printed(show_step(example, 1), 60).splitlines()]
    assert "path, decided by" in next(line for line in lines if line.startswith("site class"))
    wide = printed(show_step(example, 1), 100)
    assert "path, decided by" not in wide
    assert sum(len(line.split()) == 1 for line in lines[lines.index("Paths") + 1 :]) >= 3


def test_cached_and_proposed_tokens_have_a_column_where_there_are_any(example: Trace) -> None:
    heads = [printed(show_step(example, step)) for step in range(example.step_count)]
    answers = [step_json(example, step)["segments"] for step in range(example.step_count)]
    for text, segments in zip(heads, answers, strict=True):
        (titles,) = (line for line in text.splitlines() if line.startswith("request") and "kind" in line)
        assert ("cached" in titles) == any(segment["cached_tokens"] for segment in segments)
        assert ("proposed" in titles) == any(segment["proposed_tokens"] for segment in segments)


def test_a_step_shows_its_batch_its_paths_by_site_class_and_what_it_decided(example: Trace) -> None:
    answer = step_json(example, 1)
    assert [(s["request"], s["kind"], s["rows"]) for s in answer["segments"]] == [
        ("anchor", "decode", 1),
        ("follower", "prefill", 1),
    ]
    groups = {(g["site_class"], g["path"], g["rows"], g["sites"]) for g in answer["paths"]}
    assert groups == {("mlp", "gemm", 2, 2), ("attention", "segment", 2, 2), ("head", "gemm", 2, 1)}
    assert [(d["request"], d["token"], d["is_committed"]) for d in answer["decisions"]] == [("anchor", 10, True)]
    assert answer["events"][0]["detail"] == "prefix of 2 tokens"
    text = printed(show_step(example, 1))
    assert "follower" in text
    assert "prefix of 2 tokens" in text


def test_a_step_shows_draft_forwards_apart_and_rejected_tokens_as_such(example: Trace) -> None:
    answer = step_json(example, 2)
    assert [(f["packed_rows"], f["paths"][0]["model"]) for f in answer["draft_forwards"]] == [(1, "draft")]
    assert [d["is_committed"] for d in answer["decisions"]] == [True, True, False, True]
    assert "rejected" in printed(show_step(example, 2))


def test_a_step_that_does_not_exist_is_one_sentence_with_the_steps_that_do(example: Trace) -> None:
    for step in (-1, 4):
        with pytest.raises(DivtraceError, match="it holds steps 0 to 3"):
            show_step(example, step)


def test_requests_count_their_tokens_and_name_their_steps(example: Trace) -> None:
    anchor, follower = requests_json(example)["requests"]
    assert (anchor["prompt_tokens"], anchor["output_tokens"], anchor["ended"]) == (3, 4, "length")
    assert (follower["first_step"], follower["first_token_step"], follower["ended_step"]) == (1, 2, 3)
    assert (follower["cached_tokens"], anchor["proposed_tokens"], anchor["accepted_tokens"]) == (2, 2, 1)


def test_a_request_that_is_not_done_is_called_unfinished(tmp_path: Path) -> None:
    run = TraceBuilder()
    run.request("late", (1, 2))
    with open_trace(run.write(tmp_path / "late.h5")) as trace:
        late = requests_json(trace)["requests"][0]
        assert (late["ended"], late["first_step"], late["ended_step"]) == ("unfinished", None, None)
        assert "no step yet" in printed(show_timeline(trace, 300), 300)
        assert "late" in printed(show_run(trace))


def test_consecutive_alike_steps_are_one_line_and_a_change_of_the_batch_starts_another(tmp_path: Path) -> None:
    with open_trace(long_run(tmp_path, steps=9, visitor_at=5)) as trace:
        groups = [(g["first"], g["last"], g["packed_rows"]) for g in steps_json(trace)["steps"]]
        assert groups == [(0, 0, 2), (1, 4, 1), (5, 5, 2), (6, 9, 1)]
        assert "1-4" in printed(show_steps(trace))
        assert "more steps" in printed(show_steps(trace, limit=2))


def test_the_timeline_never_hides_a_prefill_when_many_steps_share_a_column(tmp_path: Path) -> None:
    with open_trace(long_run(tmp_path, steps=99, visitor_at=50)) as trace:
        answer = timeline_json(trace, columns=10)
        assert len(answer["column_steps"]) == 10
        visitor = next(row for row in answer["requests"] if row["request"] == "visitor")
        assert visitor["cells"] == ["", "", "", "", "", "prefill", "", "", "", ""]
        assert answer["packed_rows"][5] == 2
        assert max(len(line) for line in printed(show_timeline(trace, 40), width=40).splitlines()) <= 40


def test_the_timeline_gives_two_paths_two_letters(tmp_path: Path) -> None:
    with open_trace(long_run(tmp_path, steps=5, visitor_at=2)) as trace:
        path_line = next(line for line in printed(show_timeline(trace, 80)).splitlines() if line.startswith("path"))
        assert path_line.split()[1] == "mvmvvv"


def test_names_and_texts_from_a_trace_cannot_move_the_cursor_or_be_markup(tmp_path: Path) -> None:
    hostile = "[red]\x1b[2J\u202eevil\n[/]"
    run = TraceBuilder(environment={"device": "\x1b]0;title\x07[blink]"})
    run.request(hostile, (1, 2))
    run.step(
        segment(hostile, SegmentKind.PREFILL, 0, (1, 2), chosen=(3,)),
        lifecycle=[LifecycleEvent("admitted", hostile, 0, hostile)],
    )
    run.finish(hostile, detail=hostile)
    with open_trace(run.write(tmp_path / "hostile.h5")) as trace:
        text = (
            printed(show_run(trace), 200) + printed(show_step(trace, 0), 200) + printed(show_timeline(trace, 200), 200)
        )
    assert not {"\x1b", "\u202e", "\x07"} & set(text)
    assert "[red]\\x1b[2J\\u202eevil\\n[/]" in text
    assert "[blink]" in text


def test_a_trace_without_logits_shows_no_gap(tmp_path: Path) -> None:
    with open_trace(example_run().write(tmp_path / "tokens.h5", level=Level.TOKENS)) as trace:
        assert {decision["gap"] for decision in step_json(trace, 0)["decisions"]} == {None}
        assert "tokens" in printed(show_run(trace))


def test_all_json_forms_are_json(example: Trace) -> None:
    answers = [run_json(example), requests_json(example), steps_json(example), timeline_json(example)]
    for answer in [*answers, step_json(example, 2)]:
        assert json.loads(json.dumps(answer, allow_nan=False))["schema"].startswith("divtrace.show.")


def long_run(folder: Path, steps: int, visitor_at: int) -> Path:
    """One request that decodes for `steps` steps after its prefill; another joins for one step."""
    run = TraceBuilder(layers=1)
    run.request("resident", (1, 2), max_tokens=steps + 1)
    run.request("visitor", (3,), max_tokens=1)
    run.step(segment("resident", SegmentKind.PREFILL, 0, (1, 2), chosen=(4,)), path="gemm")
    for step in range(1, steps + 1):
        resident = segment("resident", SegmentKind.DECODE, step + 1, (4,), chosen=(4,))
        if step == visitor_at:
            run.step(resident, segment("visitor", SegmentKind.PREFILL, 0, (3,), chosen=(5,)), path="gemm")
            run.finish("visitor")
        else:
            run.step(resident)
    run.finish("resident")
    return run.write(folder / "long.h5")


@pytest.mark.parametrize(
    ("settings", "blocks", "run_words", "step_words"),
    [
        (
            {"kv": "paged", "block_size": 16, "prefix_cache": True},
            (3, 1, 64),
            "paged: 64 blocks of 16 tokens, at most 3 in use, prefix cache on",
            "paged, 3 of 64 blocks used, 1 cached",
        ),
        ({"kv": "contiguous"}, (0, 0, 0), "contiguous: an array of its own for each request, no blocks", "contiguous"),
        ({}, (2, 0, 8), "paged: 8 blocks, at most 2 in use", "paged, 2 of 8 blocks used"),
        ({}, (0, 0, 0), "", ""),
    ],
)
def test_the_kv_store_is_said_of_the_run_and_of_each_step(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, object],
    blocks: tuple[int, int, int],
    run_words: str,
    step_words: str,
) -> None:
    monkeypatch.setattr(builders, "QueueState", lambda *_: QueueState(1, 0, *blocks))
    run = TraceBuilder(settings=settings)
    run.request("only", (5, 6), max_tokens=1)
    run.step(segment("only", SegmentKind.PREFILL, 0, (5, 6), chosen=(9,)))
    trace = open_trace(run.write(tmp_path / "run.h5"))
    assert dict(run_facts(trace)).get("K/V memory", "") == run_words
    step = printed(show_step(trace, 0), width=120)
    assert ("K/V memory" in step) == bool(step_words)
    assert step_words in step


def test_following_a_run_that_has_ended_shows_each_step_once(tmp_path: Path) -> None:
    path = long_run(tmp_path, 12, visitor_at=5)
    answer = CliRunner().invoke(show_command, [str(path), "--follow"])
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.count("Steps\n") == 1
    assert answer.stdout.splitlines()[-1].startswith("complete")
