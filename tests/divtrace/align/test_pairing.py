"""Which request is which, and that nobody is dropped silently."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from divtrace.align.index import TraceIndex
from divtrace.align.pairing import Pairing, pair_requests
from divtrace.errors import DivtraceError
from divtrace.trace.reader import open_trace
from tests.divtrace.trace.builders import TraceBuilder


def pairing_of(
    folder: Path, a: Sequence[tuple[str, tuple[int, ...]]], b: Sequence[tuple[str, tuple[int, ...]]]
) -> Pairing:
    paths = []
    for name, requests in (("a", a), ("b", b)):
        run = TraceBuilder()
        for request, prompt in requests:
            run.request(request, prompt)
        paths.append(run.write(folder / f"{name}.h5"))
    with open_trace(paths[0]) as left, open_trace(paths[1]) as right:
        return pair_requests(TraceIndex(left), TraceIndex(right))


def test_ids_pair_first_even_where_prompts_would_pair_otherwise(tmp_path: Path) -> None:
    found = pairing_of(tmp_path, [("x", (1,)), ("y", (2,))], [("y", (1,)), ("x", (2,))])
    assert [(p.id_a, p.id_b, p.number_b, p.matched_by) for p in found.pairs] == [
        ("x", "x", 1, "id"),
        ("y", "y", 0, "id"),
    ]


def test_other_ids_pair_by_prompt(tmp_path: Path) -> None:
    found = pairing_of(tmp_path, [("x", (1, 2)), ("same", (3,))], [("same", (3,)), ("z", (1, 2))])
    assert [(p.id_a, p.id_b, p.matched_by) for p in found.pairs] == [("x", "z", "prompt"), ("same", "same", "id")]


def test_a_prompt_that_occurs_twice_is_ambiguous_and_listed(tmp_path: Path) -> None:
    found = pairing_of(tmp_path, [("x", (1,)), ("y", (1,)), ("only-a", (5,))], [("z", (1,)), ("only-b", (6,))])
    assert found.pairs == ()
    assert [(g.ids_a, g.ids_b) for g in found.ambiguous] == [(("x", "y"), ("z",))]
    assert (found.only_in_a, found.only_in_b) == (("only-a",), ("only-b",))


@pytest.mark.parametrize(
    ("request_id", "words"),
    [
        ("x", "cannot be paired"),
        ("only-a", "exists in run A only"),
        ("only-b", "exists in run B only"),
        ("?", "no request"),
    ],
)
def test_asking_for_a_request_without_a_partner_says_why(tmp_path: Path, request_id: str, words: str) -> None:
    found = pairing_of(
        tmp_path,
        [("x", (1,)), ("y", (1,)), ("only-a", (5,)), ("both", (9,))],
        [("z", (1,)), ("only-b", (6,)), ("both", (9,))],
    )
    with pytest.raises(DivtraceError, match=words):
        found.find(request_id)
    assert found.find("both").number_b == 2
