"""docs/trace-format.md says what the files hold."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from divtrace.trace.layout import all_tables
from divtrace.trace.schema_markdown import table_markdown
from tests.divtrace.trace.builders import example_run

PAGE = Path(__file__).parents[3] / "docs" / "trace-format.md"


def test_every_table_stands_on_the_page_as_the_schema_has_it() -> None:
    page = PAGE.read_text()
    for table in all_tables():
        assert table_markdown(table) in page, f"update with: python -m divtrace.trace.schema_markdown ({table.name})"


@pytest.mark.parametrize("ended", [True, False])
def test_the_example_runs_as_it_stands(tmp_path: Path, ended: bool) -> None:
    path = example_run().write(tmp_path / "run.h5", end=ended)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(example, {"path": path})
    lines = printed.getvalue().splitlines()
    assert lines[0] == f"level kv layers 2 {'complete' if ended else 'ended early'}"
    assert "anchor [9, 10, 11, 13]" in lines
    assert "step 1 rows 2 paths ['gemm', 'segment']" in lines
