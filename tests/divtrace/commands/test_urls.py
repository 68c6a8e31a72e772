"""Commands take URLs for traces, as they stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from divtrace.commands.main import run
from tests.divtrace.report.pairs import write_flip

pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'divtrace[remote]')")


@pytest.fixture
def urls(tmp_path: Path) -> tuple[str, str]:
    """Two traces that split, as file URLs."""
    for name, is_shared in (("serial.h5", False), ("batched.h5", True)):
        write_flip(tmp_path / name, is_shared).close()
    return (tmp_path / "serial.h5").as_uri(), (tmp_path / "batched.h5").as_uri()


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("show A", 0, "Requests"),
        ("check B", 0, "no findings"),
        ("diff A B", 1, "anchor"),
        ("blame A B --no-proof", 1, "ORIGIN"),
        ("report A B --no-proof -o OUT", 0, "kB"),
    ],
)
def test_a_trace_may_be_a_url(
    urls: tuple[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str], command: str, code: int, words: str
) -> None:
    places = {"A": urls[0], "B": urls[1], "OUT": str(tmp_path / "report.html")}
    assert run([places.get(word, word) for word in command.split()]) == code
    assert words in capfd.readouterr().out


def test_a_url_that_leads_nowhere_is_one_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "file:///nowhere/at/all.h5"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("divtrace: file:///nowhere/at/all.h5")
    assert len(err.splitlines()) == 1
