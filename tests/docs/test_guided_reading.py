"""Every path that docs/engine/reading.md names exists, and so does every symbol, in a file named in its section."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.docs.console import ROOT

PAGE = ROOT / "docs" / "engine" / "reading.md"
SPAN = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"(?:engine|divtrace|tests|fixtures)/[\w/.-]*")
SYMBOL = re.compile(r"_?[A-Za-z]\w*(?:\._?\w+)*")
NOT_SYMBOLS = {"divtrace", "blame", "invariant", "truncate", "rule.limit", "error"}


def sections() -> list[tuple[str, str]]:
    parts = re.split(r"^## (.+)$", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return list(zip(["", *parts[1::2]], parts[0::2], strict=True))


def paths_in(text: str) -> list[str]:
    return [span for span in SPAN.findall(text) if PATH.fullmatch(span)]


def symbols_of(path: Path) -> set[str]:
    """`name`, `Class` and `Class.member` of a module, its imports included."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return found


def test_every_path_exists() -> None:
    named = paths_in(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 30
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize(("heading", "text"), sections(), ids=lambda part: part[:20].strip())
def test_every_symbol_stands_in_a_file_of_its_section(heading: str, text: str) -> None:
    """Write a method as Class.method."""
    known: set[str] = set()
    for path in paths_in(text):
        if path.endswith(".py"):
            known |= symbols_of(ROOT / path)
    named = {span for span in SPAN.findall(text) if SYMBOL.fullmatch(span)} - NOT_SYMBOLS
    assert named <= known, f"{heading}: {sorted(named - known)}"


def test_the_line_that_the_page_points_at_is_there() -> None:
    assert "rule.limit" in (ROOT / "engine" / "kernels" / "policy.py").read_text(encoding="utf-8")
    assert "store.truncate" in (ROOT / "engine" / "engine.py").read_text(encoding="utf-8")
