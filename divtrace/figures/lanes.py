"""Requests by steps: one lane a request, one bar a run of alike segments. Must not know what is marked on them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from divtrace.align.index import TraceIndex
from divtrace.figures.library import load_plotly
from divtrace.figures.palette import HATCH, Look, look_of
from divtrace.figures.text import names
from divtrace.report.model import RunColumns
from divtrace.show.timeline import make_timeline

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

MOST_SHARP_BARS = 3_000
MOST_BARS = 20_000
_HOVER = "%{customdata[0]}<br>%{customdata[1]}, steps %{customdata[2]}<br>%{customdata[3]}<extra></extra>"


@dataclass(slots=True)
class Bars:
    """Bars of one kind: lane, first step, number of steps, and four words to show on hover."""

    lanes: list[int]
    steps: list[int]
    lengths: list[int]
    words: list[tuple[str, str, str, str]]


def draw_lanes(figure: Figure, row: int, index: TraceIndex, run: RunColumns, lane_px: float, legend: set[str]) -> None:
    """Add the bars of a run to pane `row`; kinds that `legend` lacks are put into the legend and into the set."""
    by_kind = _bars_of(index, run)
    is_sharp = sum(len(bars.lanes) for bars in by_kind.values()) <= MOST_SHARP_BARS
    for kind, bars in by_kind.items():
        draw = _sharp if is_sharp else _quick
        trace = draw(bars, look_of(kind), lane_px)
        trace.update(name=kind, legendgroup=kind, showlegend=kind not in legend, hovertemplate=_HOVER)
        legend.add(kind)
        figure.add_trace(trace, row=row, col=1)


def _bars_of(index: TraceIndex, run: RunColumns) -> dict[str, Bars]:
    """Bars by kind, in the order of the kinds; over too many of them only the rarest kind of a stretch is kept."""
    shown = names(run.requests)
    found = _exact(run, shown) if len(run.bars.kind) <= MOST_BARS else _stretches(index, shown)
    order = [*run.kinds, "other"]
    return dict(sorted(found.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))


def _exact(run: RunColumns, shown: list[str]) -> dict[str, Bars]:
    bars = run.bars
    found: dict[str, Bars] = {}
    for request, kind, step, steps, position, rows in zip(
        bars.request, bars.kind, bars.step, bars.steps, bars.position, bars.rows, strict=True
    ):
        name = run.kinds[kind]
        last = position + rows * steps - 1
        where = f"positions {position} to {last}" if last > position else f"position {position}"
        more = f"{where}, {rows} {'row' if rows == 1 else 'rows'} a step" if bars.is_exact else f"from {where}"
        _add(found, name, request, step, steps, (shown[request], name, _span(step, steps), more))
    return found


def _stretches(index: TraceIndex, shown: list[str]) -> dict[str, Bars]:
    """The run cut into stretches of steps, as `divtrace show` cuts it for a terminal."""
    timeline = make_timeline(index.trace, max(100, MOST_BARS // max(len(shown), 1)))
    edges = [*timeline.column_steps, index.trace.step_count]
    found: dict[str, Bars] = {}
    for request, cells in enumerate(timeline.cells):
        column = 0
        for kind, run_of_cells in groupby(cells):
            first, column = column, column + sum(1 for _ in run_of_cells)
            if kind:
                step, steps = edges[first], edges[column] - edges[first]
                words = (shown[request], kind, _span(step, steps), "and maybe others between: zoomed out")
                _add(found, kind, request, step, steps, words)
    return found


def _add(found: dict[str, Bars], kind: str, lane: int, step: int, steps: int, words: tuple[str, str, str, str]) -> None:
    bars = found.setdefault(kind, Bars([], [], [], []))
    bars.lanes.append(lane)
    bars.steps.append(step)
    bars.lengths.append(steps)
    bars.words.append(words)


def _span(step: int, steps: int) -> str:
    return str(step) if steps == 1 else f"{step} to {step + steps - 1}"


def _sharp(bars: Bars, look: Look, lane_px: float) -> Any:
    """Rectangles with patterns."""
    pattern = look.pattern if lane_px >= 8 else ""
    return load_plotly().Bar(
        orientation="h",
        base=bars.steps,
        x=bars.lengths,
        y=bars.lanes,
        width=look.height,
        customdata=bars.words,
        marker={
            "color": look.colour,
            "line": {"width": 0},
            "pattern": {"shape": pattern, "fgcolor": HATCH, "bgcolor": look.colour, "size": 6, "solidity": 0.25},
        },
    )


def _quick(bars: Bars, look: Look, lane_px: float) -> Any:
    """Thick lines on the graphics card, for long runs; hover at their ends."""
    count = len(bars.lanes)
    steps: list[int | None] = [None] * (3 * count)
    steps[0::3] = bars.steps
    steps[1::3] = [step + length for step, length in zip(bars.steps, bars.lengths, strict=True)]
    lanes: list[int | None] = [None] * (3 * count)
    lanes[0::3] = lanes[1::3] = bars.lanes
    words = [one for words in bars.words for one in (words, words, None)]
    line = {"color": look.colour, "width": max(1.5, lane_px * look.height)}
    return load_plotly().Scattergl(x=steps, y=lanes, customdata=words, mode="lines", line=line, connectgaps=False)
