"""A real Chromium for report tests: opens a page from disk and keeps what it complained about and asked for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass
class OpenedPage:
    """A page in the browser with its console messages, errors and requests."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def chosen_steps(self) -> list[int | None]:
        """Chosen step of each run, as the page's own state has it."""
        steps: list[int | None] = self.page.evaluate("report.data.runs.map((_, run) => report.chosenStep(run))")
        return steps


def find_chromium() -> str | None:
    """The browser to use: `DIVTRACE_CHROMIUM`, or the first one on the path."""
    found = [os.environ.get("DIVTRACE_CHROMIUM"), *(shutil.which(name) for name in NAMES)]
    return next((path for path in found if path), None)


@contextmanager
def running_browser() -> Iterator[Any]:
    """A headless browser; skips the test with the reason where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    executable = find_chromium()
    if executable is None:
        pytest.skip("no Chromium here: install it (apt-get install chromium) or set DIVTRACE_CHROMIUM")
    with driver.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=list(FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, path: Path, **context_settings: Any) -> Iterator[OpenedPage]:
    """`path` opened from disk in a window of its own, drawn to the end."""
    settings = {"viewport": {"width": 1280, "height": 900}} | context_settings
    context = browser.new_context(**settings)
    found = OpenedPage(context.new_page())
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(path.as_uri())
    found.page.wait_for_selector("html[data-drawn-ms]", state="attached")
    yield found
    context.close()
