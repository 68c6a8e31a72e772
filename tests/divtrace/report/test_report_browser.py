"""The report in a real browser: quiet, linked, usable with keys and a screen reader, safe with hostile text."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from divtrace.report import write_report
from divtrace.trace.reader import open_trace
from tests.divtrace.report.browser import OpenedPage, opened, running_browser
from tests.divtrace.report.long_runs import write_long_run
from tests.divtrace.report.pairs import HOSTILE_ID, HOSTILE_TEXTS, write_flip, write_hostile

TOKEN = "#text-columns .tok"
FOCUSED = """() => {
  const one = document.activeElement;
  const name = one.id || one.className || one.getAttribute("href") || "";
  return [`${one.tagName} ${name}`.trim(), getComputedStyle(one).outlineStyle];
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def report_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    a, b = write_flip(folder / "serial.h5", False), write_flip(folder / "batched.h5", True)
    return write_report(folder / "report.html", a, b, commands=["divtrace blame serial.h5 batched.h5"])


@pytest.fixture
def shown(browser: Any, report_path: Path) -> Iterator[OpenedPage]:
    with opened(browser, report_path) as found:
        yield found


def test_a_report_opens_from_disk_without_a_complaint_and_without_a_request(
    shown: OpenedPage, report_path: Path
) -> None:
    assert shown.complaints == []
    assert shown.requests == [report_path.as_uri()]
    assert shown.chosen_steps() == [1, 1]


def test_pointing_at_a_token_shows_its_gap(shown: OpenedPage) -> None:
    shown.page.hover(f"{TOKEN}.split >> nth=0")
    assert "position 6" in shown.page.inner_text("#tip")
    assert "gap 0.001" in shown.page.inner_text("#tip")


def test_a_click_on_a_token_shows_its_candidates_and_chooses_its_step_everywhere(shown: OpenedPage) -> None:
    shown.page.click("#tok-1-5")
    assert "Candidates at position 5" in shown.page.inner_text("#candidates")
    assert shown.chosen_steps() == [2, 2]
    assert shown.page.inner_text("#inspector-title") == "Step 2"
    assert shown.page.get_attribute(".grid >> nth=1", "aria-valuenow") == "2"
    assert shown.page.locator(".tok.in-step").all_inner_texts() == ["<12>", "<12>"]


def test_a_click_on_the_timeline_shows_the_batch_of_that_step(shown: OpenedPage) -> None:
    grid = shown.page.locator(".grid").nth(1)
    grid.scroll_into_view_if_needed()
    box = grid.bounding_box()
    place = shown.page.evaluate("report.xScale(report.pageWidth(document.querySelectorAll('.grid')[1])).x(1.5)")
    shown.page.mouse.click(box["x"] + place, box["y"] + 40)
    batches = shown.page.locator("#inspector-body .batch").all_inner_texts()
    assert "guest prefill 2 rows" not in batches[0]
    assert "guest prefill 2 rows" in batches[1]


def test_arrow_keys_walk_through_the_steps(shown: OpenedPage) -> None:
    shown.page.focus(".grid >> nth=1")
    shown.page.keyboard.press("ArrowRight")
    assert shown.chosen_steps() == [2, 2]
    shown.page.keyboard.press("End")
    assert shown.chosen_steps()[1] == 3
    shown.page.keyboard.press("Home")
    assert shown.chosen_steps() == [0, 0]
    assert "step 0: 3 packed rows" in shown.page.get_attribute(".grid >> nth=1", "aria-valuetext")


def test_tab_reaches_the_pictures_and_shows_where_it_is(shown: OpenedPage) -> None:
    reached: list[tuple[str, str]] = []
    while not reached or (reached[-1][0] != "BODY" and len(reached) < 100):
        shown.page.keyboard.press("Tab")
        reached.append(tuple(shown.page.evaluate(FOCUSED)))
    assert [name for name, outline in reached[:-1] if outline == "none"] == []
    names = {name for name, _ in reached}
    assert {"BUTTON theme", "SELECT request", "BUTTON zoom-in", "DIV pane grid", "INPUT step-slider"} <= names


def test_the_bar_is_one_line_until_a_step_is_chosen_and_stays_folded_when_asked(shown: OpenedPage) -> None:
    body = shown.page.locator("#inspector-body")
    assert not body.is_visible()
    assert shown.page.locator("#inspector").bounding_box()["height"] < 60
    shown.page.click("#tok-1-5")
    assert body.is_visible()
    shown.page.click("#inspector-fold")
    shown.page.click("#step-on")
    assert not body.is_visible()


def test_the_bar_covers_nothing_until_a_step_is_chosen_or_the_timeline_is_in_sight(shown: OpenedPage) -> None:
    position = "getComputedStyle(document.getElementById('inspector')).position"
    shown.page.set_viewport_size({"width": 1280, "height": 500})
    shown.page.reload()
    shown.page.wait_for_selector("html[data-drawn-ms]", state="attached")
    assert shown.page.evaluate(position) == "static"
    shown.page.evaluate("document.getElementById('timeline').scrollIntoView({ behavior: 'instant' })")
    shown.page.wait_for_selector("#inspector:not(.resting)")
    assert shown.page.evaluate(position) == "sticky"


def test_the_other_run_is_said_to_compute_the_same_rows_alone(shown: OpenedPage) -> None:
    words = """async () => {
      const written = [];
      const fill = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, ...place) {
        written.push(text);
        fill.call(this, text, ...place);
      };
      report.applyTheme();
      await new Promise((done) => setTimeout(done, 100));
      CanvasRenderingContext2D.prototype.fillText = fill;
      return written;
    }"""
    written = shown.page.evaluate(words)
    assert "step 1: the same rows of anchor, alone" in written
    assert "guest joins here, step 1" in written
    assert "first logit difference" in written


def test_every_line_of_a_picture_is_named_beside_it(shown: OpenedPage) -> None:
    assert shown.page.locator("#curve-legend span").all_inner_texts() == ["gap in A", "gap drift", "logit drift"]
    marks = shown.page.locator("#legend span").all_inner_texts()
    assert {"▷ admitted", "◆ origin", "★ split"} <= set(marks)
    assert "◇ other origins" not in marks
    rows = shown.page.locator("#kv-map .legend span").all_inner_texts()
    assert {"equal bit for bit", "prompt", "rows of origins", "carriers"} <= set(rows)


def test_jumps_lead_to_the_origin_and_to_the_flip(shown: OpenedPage) -> None:
    shown.page.click("#inspector [data-jump=flip]")
    assert shown.chosen_steps() == [3, 3]
    shown.page.click("#inspector [data-jump=origin]")
    assert shown.chosen_steps() == [1, 1]


def test_colour_by_path_and_zoom_redraw_without_a_complaint(shown: OpenedPage) -> None:
    before = shown.page.evaluate("document.querySelector('.grid canvas').toDataURL()")
    shown.page.check("input[value=path]")
    assert shown.page.evaluate("document.querySelector('.grid canvas').toDataURL()") != before
    assert "gemm" in shown.page.inner_text("#legend")
    for button in ("#zoom-in", "#zoom-out", "#zoom-fit", "#zoom-story"):
        shown.page.click(button)
    assert shown.complaints == []


def test_the_theme_follows_the_system_and_can_be_switched(browser: Any, report_path: Path) -> None:
    with opened(browser, report_path, color_scheme="dark") as found:
        theme = "document.documentElement.dataset.theme"
        assert found.page.evaluate(theme) == "dark"
        found.page.click("#theme")
        assert found.page.evaluate(theme) == "light"


def test_print_is_light_and_fits_the_paper(browser: Any, report_path: Path) -> None:
    with opened(browser, report_path, color_scheme="dark") as found:
        found.page.emulate_media(media="print", color_scheme="dark")
        found.page.wait_for_selector("html[data-theme=light]", state="attached", timeout=5000)
        widths = found.page.evaluate("[...document.querySelectorAll('main canvas')].map((one) => one.clientWidth)")
        assert max(widths) <= 690
        assert not found.page.locator("#inspector").is_visible()
        assert not found.page.locator(".hint").first.is_visible()
        assert found.page.locator("#prompt-text").is_visible()
        marked = "getComputedStyle(document.querySelector('.tok.in-step')).backgroundColor"
        assert found.page.evaluate(marked) == "rgba(0, 0, 0, 0)"
        found.page.emulate_media(media="screen")
        found.page.wait_for_selector("#prompt:not([open])", state="attached", timeout=5000)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Any, report_path: Path, theme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    with opened(browser, report_path, color_scheme=theme) as found:
        found.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        violations = axe.Axe().run(found.page).response["violations"]
    faults = [(one["id"], one["impact"], [node["html"][:120] for node in one["nodes"]]) for one in violations]
    assert [fault for fault in faults if fault[1] in ("serious", "critical")] == []


def test_hostile_text_is_shown_as_text_and_runs_nothing(browser: Any, tmp_path: Path) -> None:
    a, b = write_hostile(tmp_path / "a.h5", 13), write_hostile(tmp_path / "b.h5", 12)
    path = write_report(tmp_path / "report.html", a, b, commands=["</code><script>window.hacked = 3</script>"])
    with opened(browser, path) as found:
        found.page.click("#prompt summary")
        prompt = found.page.inner_text("#prompt-text")
        for text in (HOSTILE_TEXTS[0], HOSTILE_TEXTS[1], HOSTILE_TEXTS[5], "👩‍👩‍👧", "🙂", "\\x1b[2J", "\\u202eevil"):
            assert text in prompt
        assert found.page.evaluate("window.hacked") is None
        assert found.page.evaluate("document.querySelectorAll('img, b.evil, svg, u').length") == 0
        assert HOSTILE_ID.split("\u202e")[0] in found.page.inner_text("#inspector-body")
        assert found.complaints == []
        assert len(found.requests) == 1


def test_the_policy_stops_a_script_that_slipped_in(browser: Any, report_path: Path, tmp_path: Path) -> None:
    html = report_path.read_text(encoding="utf-8").replace("<main id", "<script>window.hacked = 1</script><main id")
    path = tmp_path / "tampered.html"
    path.write_text(html, encoding="utf-8")
    with opened(browser, path) as found:
        assert found.page.evaluate("window.hacked") is None
        assert any("Content Security Policy" in complaint for complaint in found.complaints)


def test_ten_thousand_steps_and_a_hundred_requests_are_drawn_and_linked(browser: Any, tmp_path: Path) -> None:
    a = open_trace(write_long_run(tmp_path / "a.h5", slots=3, is_b=False, mean_outputs=320))
    b = open_trace(write_long_run(tmp_path / "b.h5", slots=4, is_b=True, mean_outputs=320))
    path = write_report(tmp_path / "report.html", a, b)
    assert a.step_count >= 10_000
    assert path.stat().st_size < 5_000_000
    with opened(browser, path) as found:
        assert found.complaints == []
        (origin,) = found.page.evaluate("report.data.focus.origins.map((one) => [one.step_a, one.step_b])")
        assert found.chosen_steps() == origin
        line = "(one) => (one.scrollTop - parseFloat(getComputedStyle(one).paddingTop)) % 26"
        assert abs(found.page.eval_on_selector("#text-columns .text", line)) < 1
        assert found.page.eval_on_selector("#text-columns .text", "(one) => one.scrollTop") > 100
        assert "threshold: more than 16 rows" in found.page.inner_text("#legend")
        found.page.click("#zoom-fit")
        found.page.focus(".grid >> nth=0")
        found.page.keyboard.press("End")
        assert found.chosen_steps()[0] == a.step_count - 1
        assert "request-9" in found.page.inner_text("#inspector-body")


def test_one_run_alone_opens_without_a_complaint(browser: Any, tmp_path: Path) -> None:
    path = write_report(tmp_path / "one.html", write_flip(tmp_path / "one.h5", True))
    with opened(browser, path) as found:
        assert found.complaints == []
        assert found.page.locator(".grid").count() == 1
        assert "no verdict" not in found.page.inner_text("body").lower()


@pytest.mark.parametrize("smallest", [1e-9, 1.9e-7, 3.6e-7, 1e-6, 0.02])
def test_a_curve_of_any_size_is_drawn_with_its_powers_of_ten(shown: OpenedPage, smallest: float) -> None:
    """Not every power of ten is the number nearest to it: an axis that counts up to them may never arrive."""
    shown.page.evaluate("(value) => { report.page().margin_drift[0] = value; }", smallest)
    shown.page.set_viewport_size({"width": 1000, "height": 700})
    shown.page.wait_for_function("document.querySelector('#curve canvas')?.width > 600")
    assert shown.complaints == []
