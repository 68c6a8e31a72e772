"""What diff and blame print for a pair that flips, a pair that does not, and texts that want to break the terminal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import DiffResult
from divtrace.origin.find import find_origins
from divtrace.origin.records import OriginResult
from divtrace.render.blame import render_blame
from divtrace.render.diff import diff_sentence, render_diff
from divtrace.render.document import diff_document, diff_schema, origin_document, origin_schema
from divtrace.render.sentence import blame_sentence
from divtrace.render.text import plain
from divtrace.trace.reader import open_trace
from engine.request import Request
from tests.divtrace.origin.schedules import Schedule, serve
from tests.divtrace.origin.worlds import World

HOSTILE = "f[red]\x1b[2J\u202e"


def rule(_step: int, _site: str, rows: int) -> str:
    return "gemv" if rows <= 4 else "gemm"


def answers(
    folder: Path, follower: str = "follower", limits: tuple[int, int] = (1, 2)
) -> tuple[DiffResult, OriginResult | None]:
    requests = [Request("anchor", (3, 4, 5), 14), Request(follower, (6, 7, 8, 9, 10, 11), 3)]
    paths = []
    for name, limit in zip(("serial", "batched"), limits, strict=True):
        world = World(rule, ties=frozenset({("anchor", 9)}))
        serve(world, requests, Schedule(max_active=limit, arrivals={follower: 2}))
        paths.append(world.write(folder / f"{name}.h5"))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        diff = diff_traces(a, b)
        return diff, find_origins(a, b) if diff.exit_status else None


@pytest.fixture(scope="module")
def flipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[DiffResult, OriginResult]:
    diff, origins = answers(tmp_path_factory.mktemp("flipped"))
    assert origins is not None
    return diff, origins


def test_the_sentence_names_flip_batch_crossing_rows_distance_and_who_was_gone(
    flipped: tuple[DiffResult, OriginResult],
) -> None:
    sentence = blame_sentence(flipped[1])
    for part in (
        "request anchor flips at position 9 (output token 6)",
        'A commits " t5" (5) [logit 8.000000, gap 0.001000]',
        'B commits " t1" (1) [logit 8.001000, gap 0.001000]',
        "ORIGIN: step 2 of B with a batch of 7 rows (anchor decode 1 and follower prefill 6)",
        "took gemm instead of gemv: 7 rows over a threshold of 4, because follower's prefill of 6 joined",
        "layer 0, position 4",
        "4 steps before the flip",
        "follower had already finished (step 4)",
    ):
        assert part in sentence, part
    assert sentence.count("\n") == 0


def test_the_sentence_stands_first_and_every_line_fits_80_columns(flipped: tuple[DiffResult, OriginResult]) -> None:
    for sentence, report in (
        (diff_sentence(flipped[0]), render_diff(flipped[0])),
        (blame_sentence(flipped[1]), render_blame(flipped[1])),
    ):
        text = plain(report, 80)
        assert max(map(len, text.splitlines())) <= 80
        assert " ".join(text.split()).startswith(sentence)


def test_a_pair_without_difference_says_how_much_was_compared_and_no_more(tmp_path: Path) -> None:
    diff, _ = answers(tmp_path, limits=(1, 1))
    sentence = diff_sentence(diff)
    assert sentence.startswith("No difference seen in 17 tokens of 2 requests, the logits of 17 decisions and ")
    assert "determinis" not in plain(render_diff(diff))


def test_names_from_a_trace_cannot_steer_the_terminal(tmp_path: Path) -> None:
    diff, origins = answers(tmp_path, follower=HOSTILE)
    assert origins is not None
    for text in (plain(render_diff(diff)), plain(render_blame(origins))):
        assert "\x1b" not in text
        assert "\u202e" not in text
    assert "f[red]\\x1b[2J\\u202e's prefill of 6 joined" in blame_sentence(origins)


def test_documents_are_json_with_sentence_and_version(flipped: tuple[DiffResult, OriginResult]) -> None:
    diff, origin = diff_document(flipped[0]), origin_document(flipped[1])
    assert (diff["schema"], diff["exit_status"]) == ("divtrace.diff/1", 1)
    assert origin["schema"] == "divtrace.origin/1"
    assert origin["sentence"] == blame_sentence(flipped[1])
    for document, schema in ((diff, diff_schema()), (origin, origin_schema())):
        json.dumps(document, allow_nan=False)
        assert set(schema["properties"]) <= set(document)


def test_state_without_a_flip_is_told_as_such(tmp_path: Path) -> None:
    requests = [Request("anchor", (3, 4, 5), 14), Request("follower", (6, 7, 8, 9, 10, 11), 3)]
    paths = []
    for name, limit in (("a", 1), ("b", 2)):
        world = serve(World(rule), requests, Schedule(max_active=limit, arrivals={"follower": 2}))
        paths.append(world.write(tmp_path / f"{name}.h5"))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        diff, origins = diff_traces(a, b), find_origins(a, b)
    assert diff_sentence(diff) == (
        "All 17 tokens of 2 requests are equal, but the state of anchor is not: "
        "KV rows first differ at position 4, layer 0."
    )
    assert blame_sentence(origins).startswith("request anchor keeps its tokens up to position 16 (output token 13)")
    text = " ".join(plain(render_blame(origins)).split())
    assert "sites model.layers.0.self_attn.k_proj (gemv → gemm)" in text
    assert "logits differ" in text
