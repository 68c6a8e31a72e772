"""The flipped pair that the tests of the report look at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from divtrace.trace.reader import Trace
from divtrace.verdict.blame import blame
from divtrace.verdict.records import BlameResult
from tests.divtrace.report.pairs import write_flip


@pytest.fixture
def flip(tmp_path: Path) -> Iterator[tuple[Trace, Trace]]:
    with write_flip(tmp_path / "serial.h5", False) as a, write_flip(tmp_path / "batched.h5", True) as b:
        yield a, b


@pytest.fixture
def suspected(flip: tuple[Trace, Trace]) -> BlameResult:
    return blame(*flip)
