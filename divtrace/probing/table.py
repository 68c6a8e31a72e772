"""A probe's result for the terminal, laid out for its width. Must not know how it was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from divtrace.probing.closing import closing_lines
from divtrace.probing.heat_map import render_heat_map
from divtrace.probing.result import Findings, ProbeResult
from divtrace.probing.words import case_words, dependences, milliseconds, spoken_within, wrapped_case
from divtrace.render.text import counted

TIMED_ROWS = (8, 32, 128)
MEDIUM_WIDTH, WIDE_WIDTH = 76, 120
GAP, INDENT = "  ", "    "
CAPTION = (
    "results: how many results row 0 had over all row counts tried. ULPs: the largest difference, in units of the last"
    " place of the row's largest value. ms: the best call of 1 row and of the most rows tried, {most} unless noted."
)


@dataclass(frozen=True, slots=True)
class Column:
    """A column right of the kernel's words: two title lines, its width and what stands in it."""

    title: tuple[str, str]
    width: int
    cell: Callable[[Findings], str]


ROWS = Column(("differs from", "alone at rows"), 15, lambda found: spoken_within(found.changed, found.row_counts, 15))
RESULTS = Column(("", "results"), 7, lambda found: str(len(found.classes)))
ULPS = Column(("", "ULPs"), 5, lambda found: f"{found.most_ulps:.1f}")
SMALLEST = Column(("ms at", "1 row"), 6, lambda found: milliseconds(found, 1))
MOST = Column(("ms at", "most"), 6, lambda found: milliseconds(found, found.row_counts[-1]))


@dataclass(frozen=True, slots=True)
class ProbeTable:
    """What `render_table` gives: rich asks it for its lines when the width is known."""

    result: ProbeResult

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Machine, answer in one sentence, one line a kernel, heat map, tiles and what was left out."""
        result, width = self.result, options.max_width
        yield _machine(result)
        yield Text(_answer(result) + "\n", style="bold")
        yield from _findings_lines(result, width)
        if result.findings:
            most = max(found.row_counts[-1] for found in result.findings)
            yield Text(CAPTION.format(most=most) + "\n", style="dim")
        yield from render_heat_map(result.findings, width)
        yield from closing_lines(result)


def render_table(result: ProbeResult) -> RenderableType:
    """What a person reads at once: of a kernel's columns its own words alone are wrapped, from 60 columns on."""
    return ProbeTable(result)


def _machine(result: ProbeResult) -> Text:
    machine = result.machine
    return Text(
        f"{machine.processor}, {counted(machine.cores, 'core')}; MLX {machine.mlx_version} on"
        f" {f'{machine.backend} {machine.architecture}'.strip()}; numpy {machine.numpy_version} with {machine.blas};"
        f" weights: {result.source}"
    )


def _answer(result: ProbeResult) -> str:
    several = sum(bool(found.changed) for found in result.findings)
    count = counted(len(result.findings), "kernel")
    if not several:
        return "No kernel changed a row's bits at the row counts tried."
    return f"{several} of {count} changed a row's bits when other rows were in the call."


def _columns(width: int) -> tuple[Column, ...]:
    if width < MEDIUM_WIDTH:
        return (ROWS, RESULTS)
    if width < WIDE_WIDTH:
        return (ROWS, RESULTS, ULPS, SMALLEST, MOST)
    return (ROWS, RESULTS, ULPS, SMALLEST, *(_timed(count) for count in TIMED_ROWS), MOST)


def _timed(count: int) -> Column:
    return Column(("ms at", f"{count} rows"), 8, lambda found: milliseconds(found, count))


def _findings_lines(result: ProbeResult, width: int) -> Iterator[Text]:
    columns = _columns(width)
    taken = sum(len(GAP) + column.width for column in columns)
    longest = max((len(case_words(found)) for found in result.findings), default=0)
    kernel_width = max(16, min(longest, width - taken))
    for line, words in enumerate(("", "kernel")):
        titles = (_aligned(column, column.title[line]) for column in columns)
        yield Text(GAP.join([words.ljust(kernel_width), *titles]).rstrip(), style="bold")
    yield Text("─" * (kernel_width + taken), style="dim")
    for found in result.findings:
        yield from _case_lines(found, columns, kernel_width)
        yield from _note_lines(found, width)


def _aligned(column: Column, text: str) -> str:
    return text.ljust(column.width) if column is ROWS else text.rjust(column.width)


def _case_lines(found: Findings, columns: Sequence[Column], kernel_width: int) -> Iterator[Text]:
    first, *more = wrapped_case(found, kernel_width)
    line = Text(first.ljust(kernel_width))
    for column in columns:
        style = "" if column is not ROWS else "red" if found.changed else "green"
        line.append(GAP).append(_aligned(column, column.cell(found)), style=style)
    yield line
    for words in more:
        yield Text(words)


def _note_lines(found: Findings, width: int) -> Iterator[Text]:
    """What has no column, where there is something to say: other dependences, time that ran out."""
    last = found.row_counts[-1]
    notes = []
    if dependences(found):
        notes.append((f"depends on {dependences(found)}", "red"))
    if width < MEDIUM_WIDTH:
        times = f"{milliseconds(found, 1)} ms at 1 row, {milliseconds(found, last)} at {last}"
        notes.append((f"{found.most_ulps:.1f} ULPs; {times}", "dim"))
    if found.skipped:
        notes.append((f"tried up to {counted(last, 'row')}, then its time was spent", "dim"))
    for note, style in notes:
        for line in wrap(note, width, initial_indent=INDENT, subsequent_indent=INDENT + GAP, break_on_hyphens=False):
            yield Text(line, style=style)
