"""A probe's result for the terminal. Must not know how it was measured."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from divtrace.probing.ranges import spoken
from divtrace.probing.result import Findings, ProbeResult
from divtrace.probing.tiles import TILED_IMPLEMENTATION, propose_for_all

CLASS_COLOURS = (
    "green",
    "red",
    "yellow",
    "blue",
    "magenta",
    "cyan",
    "bright_red",
    "bright_yellow",
    "bright_blue",
)
TIMED_ROWS = (1, 8, 32, 128)
BLOCK = "█"
MOST_RUNS = 3


def render_table(result: ProbeResult) -> RenderableType:
    """One line a case, a strip of row counts coloured by result, the tiles that hold, and what was left out."""
    return Group(_heading(result), _findings_table(result), _strips(result), *_closing_lines(result))


def class_of(found: Findings, count: int) -> int:
    """Index of the equivalence class of a row count, 0 being the class of the smallest row count."""
    return next(place for place, counts in enumerate(found.classes) if count in counts)


def _heading(result: ProbeResult) -> Text:
    machine = result.machine
    return Text(
        f"{machine.processor}, {machine.cores} cores; MLX {machine.mlx_version} on {machine.backend}"
        f" {machine.architecture}; numpy {machine.numpy_version} with {machine.blas}; weights: {result.source}"
    )


def _findings_table(result: ProbeResult) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title="Row counts at which a row's bits are not those of the row alone")
    for name in (
        "operation",
        "by",
        "shape",
        "threads",
        "differs at",
        "index",
        "company",
        "padding",
        "threads matter",
    ):
        table.add_column(name, overflow="fold")
    for name in ("classes", "ULPs", *(f"ms at {count}" for count in TIMED_ROWS)):
        table.add_column(name, justify="right")
    for found in result.findings:
        tried = found.row_counts
        threads = "-" if found.thread_dependent is None else spoken(found.thread_dependent, tried, MOST_RUNS)
        table.add_row(
            found.operation,
            _implementation(found),
            _shape(found),
            _coloured(spoken(found.changed, tried, MOST_RUNS)),
            _coloured(spoken(found.index_dependent, tried, MOST_RUNS)),
            _coloured(spoken(found.neighbour_dependent, tried, MOST_RUNS)),
            _coloured(spoken(found.padding_dependent, tried, MOST_RUNS)),
            _coloured(threads),
            str(len(found.classes)),
            f"{found.most_ulps:.1f}",
            *(f"{found.time_s[count] * 1e3:.3f}" if count in found.time_s else "-" for count in TIMED_ROWS),
        )
    return table


def _implementation(found: Findings) -> str:
    return f"{found.implementation}, {found.threads} threads" if found.threads else found.implementation


def _shape(found: Findings) -> str:
    return found.shape if found.dtype in found.shape else f"{found.shape} {found.dtype}"


def _coloured(text: str) -> Text:
    return Text(text, style="green" if text == "none" else "dim" if text == "-" else "red")


def _strips(result: ProbeResult) -> Table:
    table = Table(
        box=None,
        title="Results of row 0 by row count, left to right; one colour is one result",
        show_header=False,
    )
    table.add_column(overflow="fold")
    table.add_column(no_wrap=True)
    for found in result.findings:
        strip = Text()
        for count in found.row_counts:
            strip.append(BLOCK, style=CLASS_COLOURS[class_of(found, count) % len(CLASS_COLOURS)])
        table.add_row(f"{found.operation}, {_implementation(found)}, {_shape(found)}", strip)
    return table


def _closing_lines(result: ProbeResult) -> list[Text]:
    lines = []
    for tile in result.tiles:
        if tile.best is None:
            text = f"tile: no row count holds for {tile.shape} by {tile.implementation} on {tile.threads} threads"
        else:
            text = (
                f"tile:{tile.best} for {tile.shape} by {tile.implementation} on {tile.threads} threads"
                f" (holds at {', '.join(map(str, tile.candidates))})"
            )
        lines.append(Text(text))
    lines += _tile_for_all(result)
    for found in result.findings:
        if found.unrepeatable:
            lines.append(
                Text(
                    f"not repeatable: {found.operation} {found.shape} by {found.implementation}",
                    style="bold red",
                )
            )
        if found.skipped:
            lines.append(
                Text(
                    f"too slow for its share of the time: {found.operation} {found.shape} by {found.implementation},"
                    f" left out {found.skipped[0]} rows and more",
                    style="dim",
                )
            )
    if result.not_run:
        lines.append(Text(f"not run for lack of time: {'; '.join(result.not_run)}", style="dim"))
    lines.append(Text(f"{result.elapsed_s:.1f} s; seed {result.seed}", style="dim"))
    return lines


def _tile_for_all(result: ProbeResult) -> list[Text]:
    cases = [found for found in result.findings if found.implementation == TILED_IMPLEMENTATION]
    if len(cases) < 2:
        return []
    size = propose_for_all(cases)
    if size is None:
        return [Text("tile: no row count holds for all of these shapes; use gemv or invariant", style="bold")]
    return [Text(f"tile:{size} holds for all of these shapes: record with policy=tile:{size}", style="bold")]
