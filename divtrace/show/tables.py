"""The one look of tables and facts that all renderables of `show` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from divtrace.show.paths import PathGroup
from divtrace.show.safe_text import plain

KIND_STYLES = {"prefill": "blue", "decode": "green", "verify": "magenta", "recompute": "yellow"}


NARROW_BELOW = 76
"""Columns of a terminal below which a table gives up some of its own."""


@dataclass(frozen=True, slots=True)
class ByWidth:
    """A renderable that is built when the width is known: `build(is_narrow)`."""

    build: Callable[[bool], RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Build it for this width."""
        yield self.build(options.max_width < NARROW_BELOW)


def compact_table(title: str, is_wide: bool = False) -> Table:
    """A table without a frame; `is_wide` gives what is left of the width to its columns with a ratio."""
    return Table(
        title=title,
        title_justify="left",
        caption_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
        expand=is_wide,
        header_style="bold",
    )


def facts_table(facts: Sequence[tuple[str, str]]) -> Table:
    """Name and value, line by line."""
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, plain(value))
    return table


def number_text(value: int | None) -> str:
    """The number, a dash where there is none."""
    return "-" if value is None else str(value)


def seconds_text(seconds: float) -> str:
    """A duration with a unit that keeps three digits."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"


def kind_text(kind: str) -> Text:
    """A segment's kind in its colour."""
    return plain(kind, KIND_STYLES.get(kind, ""))


def short_paths(groups: Sequence[PathGroup]) -> str:
    """Distinct paths of the target's linears, in execution order: `gemm`, or `gemv, gemm`."""
    names = dict.fromkeys(g.path for g in groups if g.model != "draft" and g.site_class not in ("attention", "head"))
    return ", ".join(names)
