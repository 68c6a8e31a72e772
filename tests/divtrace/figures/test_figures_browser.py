"""Figures in a real Chromium: they draw without a complaint, and hostile text is text, in axes, titles and on hover."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import divtrace
from tests.divtrace.report.browser import running_browser
from tests.divtrace.report.pairs import HOSTILE_ID, write_hostile

pytest.importorskip("plotly", reason="plotly is not installed (pip install 'divtrace[plot]')")

HOVER_ALL = """async () => {
  const graph = document.querySelector('.js-plotly-plot');
  const texts = [];
  for (const [curve, trace] of graph._fullData.entries()) {
    for (const point of (trace.x || []).keys()) {
      const subplot = `${trace.xaxis}${trace.yaxis}`;
      Plotly.Fx.hover(graph, [{ curveNumber: curve, pointNumber: point }], subplot);
      await new Promise((done) => setTimeout(done, 70));
      texts.push(graph.querySelector('.hoverlayer').textContent);
    }
  }
  return texts.join('\\n');
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two runs full of markup that split at their last token."""
    folder = tmp_path_factory.mktemp("hostile")
    for name, last in (("a.h5", 1), ("b.h5", 2)):
        write_hostile(folder / name, last).close()
    return folder / "a.h5", folder / "b.h5"


def drawn(browser: Any, figure: Any, path: Path) -> tuple[Any, list[str]]:
    """The figure in a page of its own, and what the page complained about."""
    figure.write_html(path)
    page = browser.new_page(viewport={"width": 1100, "height": 700})
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    page.wait_for_selector(".js-plotly-plot .main-svg")
    page.wait_for_function("document.querySelector('.js-plotly-plot')._fullLayout !== undefined")
    return page, complaints


@pytest.mark.parametrize("kind", ["timeline", "diff", "blame"])
def test_hostile_text_is_shown_as_text(browser: Any, hostile: tuple[Path, Path], tmp_path: Path, kind: str) -> None:
    if kind == "timeline":
        with divtrace.open_trace(hostile[0]) as trace:
            figure = trace.plot_timeline()
    elif kind == "diff":
        figure = divtrace.diff(*hostile).plot()
    else:
        figure = divtrace.blame(*hostile, proof=False).plot()
    page, complaints = drawn(browser, figure, tmp_path / "figure.html")
    texts = page.locator(".js-plotly-plot").text_content()
    hovered = page.evaluate(HOVER_ALL)
    assert "</script><b>id</b>" in texts
    assert "\\u202e" in texts
    assert page.evaluate("window.hacked") is None
    assert page.locator(".js-plotly-plot svg a").count() == 0
    assert page.locator(".js-plotly-plot img").count() == 0
    if kind != "diff":
        assert HOSTILE_ID.replace("\u202e", "\\u202e") in hovered
        assert "</script><b>path" in hovered
    assert complaints == []
    page.close()
