"""Tables for pandas and Arrow hold the same numbers as the columns."""

from __future__ import annotations

from pathlib import Path

import pytest

from divtrace.errors import DivtraceError
from divtrace.trace.frames import to_arrow, to_pandas
from divtrace.trace.reader import open_trace
from tests.divtrace.trace.builders import example_run


def test_a_pandas_table_holds_the_columns_and_their_strings(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    with open_trace(example_run().write(tmp_path / "run.h5")) as trace:
        rows = to_pandas(trace, "rows")
        assert rows["position"].tolist() == trace.column("rows", "position").tolist()
        assert rows["key_hash"][3].tolist() == trace.column("rows", "key_hash")[3].tolist()
        assert to_pandas(trace, "requests")["id"].tolist() == ["anchor", "follower"]


def test_an_arrow_table_holds_the_columns_and_their_strings(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    with open_trace(example_run().write(tmp_path / "run.h5")) as trace:
        rows = to_arrow(trace, "rows")
        assert rows["digest"].to_pylist() == trace.column("rows", "digest").tolist()
        assert rows["key_hash"].to_pylist() == trace.column("rows", "key_hash").tolist()
        assert to_arrow(trace, "events")["detail"].to_pylist() == ["prefix of 2 tokens"]
        assert to_arrow(trace, "audits").num_rows == 0


def test_an_unknown_table_ends_in_one_sentence(tmp_path: Path) -> None:
    with open_trace(example_run().write(tmp_path / "run.h5")) as trace, pytest.raises(DivtraceError, match="'nothing'"):
        to_pandas(trace, "nothing")
