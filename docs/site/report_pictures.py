"""Takes the pictures of a report that the documents show: `python -m docs.site.report_pictures report.html`.

Needs playwright and a Chromium; the report is that of the demonstration pair (`make demo`, then `divtrace report`).
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parents[1] / "images"
WINDOW = {"width": 1280, "height": 900}
PAPER = {"width": 794, "height": 1123}
PARTS = {
    "texts": "#texts", "timeline": "#timeline", "curves": "#curves", "kv": "#kv", "proof": "#proof",
}  # fmt: skip


def main() -> None:
    """Write the top and the whole in light and dark, the parts in light, and the whole as it is printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=WINDOW, color_scheme=scheme)
            page.goto(options.report.resolve().as_uri())
            page.wait_for_selector("html[data-drawn-ms]", state="attached")
            take(page, scheme)
            page.close()
        page = browser.new_page(viewport=PAPER)
        page.goto(options.report.resolve().as_uri())
        page.wait_for_selector("html[data-drawn-ms]", state="attached")
        page.emulate_media(media="print")
        page.wait_for_selector("details[open] #prompt-text", state="visible")
        page.screenshot(path=FOLDER / "report-print.png", full_page=True)
        browser.close()


def take(page: Any, scheme: str) -> None:
    """The pictures of one colour scheme. The bar at the foot is laid down before a long picture is taken."""
    # As high as the stations of the difference reach: a card that is cut tells half a story.
    height = page.evaluate("Math.ceil(document.querySelector('.chain').getBoundingClientRect().bottom) + 20")
    page.set_viewport_size({**WINDOW, "height": height})
    page.screenshot(path=FOLDER / f"report-top-{scheme}.png")
    page.set_viewport_size(WINDOW)
    page.evaluate("document.getElementById('inspector').style.position = 'static'")
    page.screenshot(path=FOLDER / f"report-{scheme}.png", full_page=True)
    if scheme == "light":
        for name, selector in PARTS.items():
            page.locator(selector).first.screenshot(path=FOLDER / f"report-{name}.png")


if __name__ == "__main__":
    main()
