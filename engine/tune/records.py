"""What tuning measures and what it decides. Pure records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PathRange:
    """`path` is taken up to `max_rows` rows; None: for any number of rows."""

    max_rows: int | None
    path: str


@dataclass(frozen=True, slots=True)
class TunedPolicy:
    """Ranges of rows by site shape (see `shape_name`), each in ascending order, the last one without a limit."""

    shapes: Mapping[str, tuple[PathRange, ...]]

    def path_of(self, shape: str, rows: int) -> str | None:
        """The path for a shape at so many rows; None for a shape that was not tuned."""
        for choice in self.shapes.get(shape, ()):
            if choice.max_rows is None or rows <= choice.max_rows:
                return choice.path
        return None


@dataclass(frozen=True, slots=True)
class ShapeTimings:
    """Best milliseconds of one call by row count and path, for the sites of one shape."""

    shape: str
    sites: int
    milliseconds: Mapping[int, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The policy, the timings that it follows from, and the machine that they hold for (JSON-ready)."""

    policy: TunedPolicy
    timings: tuple[ShapeTimings, ...]
    environment: Mapping[str, Any] = field(default_factory=dict)
    model: str = ""
