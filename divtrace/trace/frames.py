"""Tables of a trace as pandas or Arrow tables, with strings in place of their numbers. Both libraries are optional."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.errors import DivtraceError
from divtrace.trace.layout import all_tables
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Column


def to_pandas(trace: Trace, table: str) -> Any:
    """A pandas.DataFrame with the table's recorded columns; wide columns hold one list per row.

    Raises:
        DivtraceError: pandas is not installed, or there is no such table.
        TraceError: the table is damaged.
    """
    try:
        import pandas
    except ImportError as error:
        raise DivtraceError("to_pandas needs pandas, which is not installed; install it with pip.") from error
    return pandas.DataFrame({name: _flat(values) for name, values in _columns(trace, table).items()})


def to_arrow(trace: Trace, table: str) -> Any:
    """A pyarrow.Table with the table's recorded columns; wide columns are fixed-size lists.

    Raises:
        DivtraceError: pyarrow is not installed, or there is no such table.
        TraceError: the table is damaged.
    """
    try:
        import pyarrow
    except ImportError as error:
        raise DivtraceError("to_arrow needs pyarrow, which is not installed; install it with pip.") from error
    arrays = {}
    for name, values in _columns(trace, table).items():
        arrays[name] = pyarrow.array(np.ravel(values))
        if values.ndim == 2:
            arrays[name] = pyarrow.FixedSizeListArray.from_arrays(arrays[name], values.shape[1])
    return pyarrow.table(arrays)


def _flat(values: npt.NDArray[Any]) -> Any:
    return values if values.ndim == 1 else list(values)


def _columns(trace: Trace, table: str) -> dict[str, npt.NDArray[Any]]:
    found = next((known for known in all_tables() if known.name == table), None)
    if found is None:
        raise DivtraceError(f"{trace.path}: there is no table {table!r}; docs/trace-format.md lists them.")
    recorded = [column for column in found.columns if trace.is_stored(table, column.name)]
    return dict(_named(trace, table, column) for column in recorded)


def _named(trace: Trace, table: str, column: Column) -> tuple[str, npt.NDArray[Any]]:
    values = trace.column(table, column.name)
    if not column.name.endswith("_string"):
        return column.name, values
    texts = {int(index): trace.string(index) for index in np.unique(values)}
    return column.name.removesuffix("_string"), np.array([texts[int(index)] for index in values], object)
