"""What `divtrace blame` prints: JSON of a documented schema, the argument step by step, every option on one pair."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from divtrace.render.blame_document import blame_document, blame_schema
from divtrace.render.blame_schema_page import page
from divtrace.render.explain import explanation, render_explanation
from divtrace.render.text import plain
from divtrace.render.verdict import render_verdict
from divtrace.trace.reader import open_trace
from divtrace.verdict.blame import ProofOptions, blame
from divtrace.verdict.records import BlameResult
from tests.divtrace.proof.pairs import flipping_pair, handoff, model, record

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> BlameResult:
    a, b = flipping_pair(tmp_path_factory.mktemp("pair"))
    with open_trace(a) as trace_a, open_trace(b) as trace_b:
        options = ProofOptions(model, check_recording=True, reference=True, past_flip=3)
        return blame(trace_a, trace_b, proof=options)


def check(value: Any, kind: Mapping[str, Any], definitions: Mapping[str, Any], where: str) -> None:
    """The part of JSON schema that these schemas use."""
    if "$ref" in kind:
        return check(value, definitions[kind["$ref"].rpartition("/")[2]], definitions, where)
    if "anyOf" in kind:
        chosen = [part for part in kind["anyOf"] if (part.get("type") == "null") == (value is None)]
        return check(value, chosen[0], definitions, where)
    if "enum" in kind:
        assert value in kind["enum"], where
    names = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool, "null": type(None)}
    if kind.get("type") == "number":
        assert isinstance(value, int | float), where
    elif "type" in kind:
        assert isinstance(value, names[kind["type"]]), (where, value)
    if kind.get("type") == "object":
        assert set(kind["required"]) <= set(value) <= set(kind["properties"]), where
        for name, inner in value.items():
            check(inner, kind["properties"][name], definitions, f"{where}.{name}")
    if kind.get("type") == "array":
        for number, inner in enumerate(value):
            check(inner, kind["items"], definitions, f"{where}.{number}")
    return None


def test_the_document_is_of_its_schema(result: BlameResult) -> None:
    schema = blame_schema()
    document = json.loads(json.dumps(blame_document(result), allow_nan=False))
    check(document, schema, schema["$defs"], "document")
    assert document["schema"] == "divtrace.blame/1"
    assert (document["verdict"], document["exit_status"]) == ("kernel path", 1)
    assert document["proof"]["trials"][0]["flips"] is True
    assert document["reference"]["agrees_with"] in ("A", "B")
    assert len(document["past_flip"]["positions"]) == 4


def test_the_schema_notices_a_field_that_is_missing(result: BlameResult) -> None:
    schema, document = blame_schema(), blame_document(result)
    del document["proof"]["trials"][0]["flips"]
    with pytest.raises(AssertionError):
        check(document, schema, schema["$defs"], "document")


def test_the_page_about_the_schema_is_fresh() -> None:
    written = (DOCS / "blame-json.md").read_text(encoding="utf-8")
    assert written == page(), "update with: python -m divtrace.render.blame_schema_page > docs/blame-json.md"


def test_the_argument_goes_from_controls_to_the_verdict(result: BlameResult) -> None:
    steps = explanation(result)
    claims = [step.claim for step in steps]
    order = [
        "Control: same prompts",
        "Control: A against A",
        "Control: recording",
        "The runs part at",
        "The logits them",
    ]
    order += ["The difference came through", "The first record with equal inputs", "Taking the suspect away"]
    order += ["Putting the suspect into", "Verdict: kernel path"]
    places = [next(i for i, claim in enumerate(claims) if claim.startswith(start)) for start in order]
    assert places == sorted(places)
    assert all(step.evidence for step in steps)
    assert sum(bool(step.rules_out) for step in steps) >= 8


def test_both_renderings_fit_a_narrow_terminal_and_name_the_essentials(result: BlameResult) -> None:
    for shown in (plain(render_verdict(result)), plain(render_explanation(result))):
        assert all(len(line) <= 80 for line in shown.splitlines())
        for word in ("kernel path", "proven both ways", "float64", "K/V rows", "follower", "bit for bit"):
            assert word in shown.replace("\n", " "), word
    assert plain(render_explanation(result)).startswith("1. Control: same prompts")


def test_an_argument_that_a_control_ends_stops_there(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", handoff(0, 4), max_active=1)
    b = record(tmp_path / "b.h5", handoff(7, 4)[:1], max_active=1)
    with open_trace(a) as trace_a, open_trace(b) as trace_b:
        stopped = blame(trace_a, trace_b)
    claims = [step.claim for step in explanation(stopped)]
    assert claims[0] == "Control: same prompts does NOT hold"
    assert claims[-1] == "Verdict: inputs differ"
    assert blame_document(stopped)["origins"] is None
