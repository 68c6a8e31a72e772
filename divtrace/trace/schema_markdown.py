"""The schema as Markdown tables: `python -m divtrace.trace.schema_markdown` prints what docs/trace-format.md holds."""

from __future__ import annotations

from divtrace.trace.layout import all_tables
from divtrace.trace.schema import Table


def table_markdown(table: Table) -> str:
    """One table of the schema: a heading, its meaning, and a row per column."""
    lines = [f"### `{table.name}`", "", f"{table.meaning[0].upper()}{table.meaning[1:]}.", ""]
    lines += ["| column | dtype | shape | level | meaning |", "|---|---|---|---|---|"]
    for column in table.columns:
        shape = f"(rows, {column.width})" if column.width else "(rows,)"
        lines.append(f"| `{column.name}` | {column.dtype} | {shape} | {column.level} | {column.meaning} |")
    return "\n".join(lines)


def schema_markdown() -> str:
    """All tables, in file order."""
    return "\n\n".join(table_markdown(table) for table in all_tables())


if __name__ == "__main__":
    print(schema_markdown())
