"""The diagrams: what the script draws is what lies in docs/images, and anybody can read it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from docs.site.diagrams.__main__ import FOLDER, PICTURES
from tests.docs.console import ROOT

SVG = "{http://www.w3.org/2000/svg}"
CHARACTER_WIDTH = 6.9
"""Units that a character of the pictures' text takes on average, at most."""


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_is_what_the_script_draws(name: str) -> None:
    drawn = PICTURES[name]().render()
    assert drawn == PICTURES[name]().render()
    kept = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == kept, "write them with: python -m docs.site.diagrams"


@pytest.mark.parametrize("name", PICTURES)
def test_the_picture_speaks_and_stays_inside_its_frame(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    root = ElementTree.fromstring(text)
    assert (root.findtext(f"{SVG}title") or "").strip()
    assert len((root.findtext(f"{SVG}desc") or "").split()) > 10
    assert "prefers-color-scheme: dark" in text
    assert set(re.findall(r"https?://[^\s\"')<]+", text)) == {"http://www.w3.org/2000/svg"}
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for word in root.iter(f"{SVG}text"):
        x, y, length = float(word.attrib["x"]), float(word.attrib["y"]), len(word.text or "") * CHARACTER_WIDTH
        before = {"middle": length / 2, "end": length}.get(
            next((s for s in word.attrib["class"].split() if s in ("middle", "end")), ""), 0.0
        )
        assert x - before >= 0, word.text
        assert x - before + length <= width, word.text
        assert 0 < y < height, word.text


def test_every_picture_is_shown_and_every_shown_one_is_drawn() -> None:
    pages = " ".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"images/concepts/([\w-]+)\.svg", pages)) == set(PICTURES)
    assert {path.stem for path in FOLDER.iterdir()} == set(PICTURES)
