"""The site of the documents: strict, complete, and without a request to anybody."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from divtrace.commands.main import COMMANDS
from tests.divtrace.report.browser import running_browser
from tests.docs.console import ROOT

CONFIGURATION = ROOT / "docs" / "site" / "mkdocs.yml"
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio|embed)\b[^>]*?\bsrc=["']?([^"'\s>]+)|<link\b[^>]*?\bhref=["']?([^"'\s>]+)"""
)
LOADED_BY_STYLE = re.compile(r"""(?:@import|url\()\s*["']?(https?:|//)""")
FOREIGN = re.compile(r"(?:https?:)?//")


def build(folder: Path, configuration: Path = CONFIGURATION) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'divtrace[docs]'")
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(configuration), "--site-dir", str(folder)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site."""
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def test_every_page_is_built_and_in_the_navigation(site: Path) -> None:
    text = CONFIGURATION.read_text(encoding="utf-8")
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert [str(page) for page in pages if f"{page}\n" not in text] == []
    for page in pages:
        assert (site / page.with_name("index.html" if page.name == "README.md" else f"{page.stem}.html")).exists(), page


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    seen = 0
    for path in site.rglob("*.html"):
        for match in LOADED.finditer(path.read_text(encoding="utf-8")):
            seen += 1
            assert not FOREIGN.match(match.group(1) or match.group(2)), (path, match.group(0))
    assert seen > 100
    for path in site.rglob("*.css"):
        assert not LOADED_BY_STYLE.search(path.read_text(encoding="utf-8")), path


def test_the_references_hold_every_command_and_function(site: Path) -> None:
    commands = (site / "reference" / "commands.html").read_text(encoding="utf-8")
    assert [name for name in COMMANDS if f'id="divtrace-{name}"' not in commands] == []
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in ("record", "diff", "blame", "probe"):
        assert f'id="divtrace.api.{name}.{name}"' in python
    assert 'id="divtrace.trace.reader.open_trace"' in python


def test_a_link_to_nowhere_fails_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "index.md").write_text("[lost](nowhere.md)\n")
    kept = {"site_name": "x", "docs_dir": str(pages), "theme": "mkdocs"}
    configuration = tmp_path / "mkdocs.yml"
    rules = re.search(r"^validation:\n(?:  .*\n)+", CONFIGURATION.read_text(encoding="utf-8"), re.MULTILINE)
    assert rules is not None
    configuration.write_text(yaml.safe_dump(kept) + rules.group(0))
    done = build(tmp_path / "out", configuration)
    assert done.returncode != 0
    assert "nowhere.md" in done.stderr


def test_a_page_opened_from_disk_asks_nobody_and_its_search_finds(site: Path) -> None:
    complaints: list[str] = []
    requests: list[str] = []
    with running_browser() as browser:
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.fill("input[name=query]", "attention split")
        page.wait_for_selector(".md-search-result__item a", timeout=20_000)
        page.click(".md-search-result__item a")
        page.wait_for_url("**/verdicts.html*", timeout=20_000)
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []
