"""How results are shown: a table with the command that made it and the machine it ran on, as Markdown or JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from engine.environment import describe_environment

Cell = str | int | float


@dataclass(frozen=True, slots=True)
class Table:
    """One table of results. `notes` are sentences below it; `facts` are numbers for machines alone."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    facts: dict[str, Any] = field(default_factory=dict)

    def markdown(self) -> str:
        """A heading, the table, its notes."""
        lines = [f"### {self.title}", "", _row(self.columns), _row(["---"] * len(self.columns))]
        lines += [_row([show(cell) for cell in row]) for row in self.rows]
        lines += ["", *self.notes] if self.notes else []
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Report:
    """What one benchmark found, with the command that repeats it and the machine."""

    name: str
    command: str
    tables: tuple[Table, ...]
    environment: str

    def markdown(self) -> str:
        """All tables under the command and the machine."""
        head = [f"## {self.name}", "", f"`{self.command}`", "", self.environment, ""]
        return "\n".join(head) + "\n\n".join(table.markdown() for table in self.tables) + "\n"

    def as_json(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def show(cell: Cell) -> str:
    """Four significant digits; whole numbers as they are."""
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def environment_line() -> str:
    """The machine in one line: processor, BLAS with its kernels and threads, versions."""
    facts = describe_environment()
    versions = facts["versions"]
    blas = ", ".join(
        f"{b['internal_api']} {b['version']} {b['architecture'] or ''} x{b['num_threads']}" for b in facts["blas"]
    )
    variables = " ".join(f"{name}={value}" for name, value in facts["variables"].items())
    parts = [
        facts["processor"],
        facts["system"],
        f"MLX on {facts['device']}",
        blas,
        f"mlx {versions['mlx']}, mlx-lm {versions['mlx-lm']}, numpy {versions['numpy']}, Python {facts['python']}",
        variables,
    ]
    return "; ".join(part for part in parts if part)


def _row(cells: tuple[str, ...] | list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
