"""The HTML file as a file: self-contained, walled in, and telling the story in words without its script."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from divtrace.report import write_report
from divtrace.report.page import script_safe_json
from divtrace.report.story import tell
from divtrace.trace.reader import Trace
from divtrace.verdict.blame import blame
from divtrace.verdict.records import BlameResult, Confidence, Nature, Verdict
from tests.divtrace.report.pairs import HOSTILE_TEXTS, write_hostile


class Elements(HTMLParser):
    """Every element of a page, and the text of each script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.tags[-1][0] if self.tags else "", data))


def page_of(tmp_path: Path, *arguments: Any, **more: Any) -> str:
    return write_report(tmp_path / "report.html", *arguments, **more).read_text(encoding="utf-8")


def test_a_page_refers_to_nothing_outside_of_itself(tmp_path: Path, flip: tuple[Trace, Trace]) -> None:
    html = page_of(tmp_path, *flip)
    for tag, attributes in Elements(html).tags:
        assert tag not in {"link", "iframe", "img", "object", "embed", "base"}
        assert not {"src", "style", "onclick", "onload"} & set(attributes), tag
        assert (attributes.get("href") or "#").startswith("#")
    assert "@import" not in html
    assert "url(" not in html
    assert len(html) < 1_000_000


def test_the_policy_allows_these_scripts_and_styles_by_hash_and_no_request(
    tmp_path: Path, flip: tuple[Trace, Trace]
) -> None:
    html = page_of(tmp_path, *flip)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    script = html.split("<script>")[1].split("</script>")[0]
    style = html.split("<style>")[1].split("</style>")[0]
    for text in (script, style):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy.group(1)
    assert "default-src 'none'" in policy.group(1).replace("&#39;", "'")
    assert "unsafe" not in policy.group(1)


def test_the_licence_of_the_chart_library_is_in_the_page(tmp_path: Path, flip: tuple[Trace, Trace]) -> None:
    html = page_of(tmp_path, *flip)
    assert "The MIT License (MIT)" in html
    assert "Leon Sorokin" in html


def test_a_hostile_trace_adds_no_element_to_the_page(tmp_path: Path, flip: tuple[Trace, Trace]) -> None:
    tame = {tag for tag, _ in Elements(page_of(tmp_path, *flip, commands=["echo"])).tags}
    a, b = write_hostile(tmp_path / "a<b>.h5", 13), write_hostile(tmp_path / "b<i>.h5", 12)
    html = page_of(tmp_path, a, b, commands=["echo '</code><script>'"])
    page = Elements(html)
    assert {tag for tag, _ in page.tags} <= tame
    assert [tag for tag, _ in page.tags].count("script") == 2
    data = next(text for tag, text in page.texts if tag == "script" and text.startswith("{"))
    assert set("<>&").isdisjoint(data)
    shown = json.loads(data)["strings"]
    assert HOSTILE_TEXTS[0] in shown
    assert "\\x1b[2J\\x00\\x07" in shown
    assert "🙂" in shown
    assert "\x1b" not in html


def test_json_in_the_page_cannot_end_its_element_and_holds_no_nan() -> None:
    text = script_safe_json({"a": ["</script>", "<!--", "\u2028", "\ud800", "&"]})
    assert set("<>&").isdisjoint(text)
    assert text.isascii()
    assert json.loads(text)["a"][0] == "</script>"
    with pytest.raises(ValueError, match="not JSON compliant"):
        script_safe_json([float("nan")])


def test_without_its_script_the_page_still_answers_every_question(tmp_path: Path, flip: tuple[Trace, Trace]) -> None:
    html = page_of(tmp_path, *flip, commands=["divtrace blame a.h5 b.h5"])
    words = " ".join(text for tag, text in Elements(html).texts if tag not in ("script", "style"))
    for part in (
        "Request anchor split at output token 3",
        "guest’s prefill of 2 rows",
        "Which step caused it?",
        "Joined: guest’s prefill of 2 rows.",
        "Words on this page",
        "What next?",
        "Suspected: step 1 of run B",
        "Is it a bug?",
        "settings.max_active",
        "divtrace blame a.h5 b.h5",
    ):
        assert part in words


def test_a_report_of_one_run_has_no_verdict(tmp_path: Path, flip: tuple[Trace, Trace]) -> None:
    html = page_of(tmp_path, flip[0])
    assert "Verdict:" not in html
    assert "serial: one run" in html


def test_a_failed_report_leaves_the_old_file_and_no_scrap(tmp_path: Path, flip: tuple[Trace, Trace]) -> None:
    path = write_report(tmp_path / "report.html", *flip)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(OSError, match="missing"):
        write_report(tmp_path / "missing" / "report.html", *flip)
    assert path.read_text(encoding="utf-8") == before
    assert [entry.name for entry in tmp_path.glob(".*part")] == []


@pytest.fixture
def judged(flip: tuple[Trace, Trace]) -> BlameResult:
    return blame(*flip)


def test_a_suspicion_is_never_told_as_a_cause(judged: BlameResult) -> None:
    story = tell(judged)
    assert "suspected cause" in story.headline
    assert "because" not in story.headline
    assert story.is_it_a_bug.startswith("Not proven")
    assert story.proof.startswith("Suspected, nothing was re-run")


def test_a_proven_cause_is_told_as_one_and_rounding_is_no_bug(judged: BlameResult) -> None:
    story = tell(replace(judged, nature=Nature.ROUNDING, confidence=Confidence.PROVEN))
    cause = "guest’s prefill of 2 rows joined its batch 2 steps earlier, in step 1 of run B (batched)"
    assert f"because {cause}" in story.headline
    assert "policy invariant or gemv" in story.next_step
    assert story.is_it_a_bug == "No. Rounding, not a bug"
    assert story.tone == "rounding"


def test_what_is_to_be_typed_is_set_as_code_and_stays_escaped(
    judged: BlameResult, flip: tuple[Trace, Trace], tmp_path: Path
) -> None:
    html = page_of(tmp_path, *flip, replace(judged, next_time=("take `a <b> c` and go",)))
    assert "Take <code>a &lt;b&gt; c</code> and go." in html


def test_a_bug_is_called_a_bug_with_its_reason(judged: BlameResult) -> None:
    found = replace(judged, verdict=Verdict.STATE_CORRUPTION, nature=Nature.BUG, reason="a row changed after writing")
    story = tell(found)
    assert story.headline.endswith("a row changed after writing.")
    assert story.is_it_a_bug.startswith("Yes.")


def test_equal_runs_are_told_in_one_sentence(flip: tuple[Trace, Trace], tmp_path: Path) -> None:
    story = tell(blame(flip[0], flip[0]))
    assert story.headline.startswith("No divergence seen")
    assert story.answers == ()
    page = page_of(tmp_path, flip[0], flip[0])
    assert "No divergence seen" in page
    assert "suspect" not in page.split('id="proof"')[1].split("</section>")[0]
