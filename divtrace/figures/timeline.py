"""The timeline of one run, or of the two that blame looked at."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from divtrace.align.index import TraceIndex
from divtrace.errors import DivtraceError
from divtrace.figures.lanes import draw_lanes
from divtrace.figures.library import finish, new_panes
from divtrace.figures.row_curve import draw_row_curve
from divtrace.figures.story import draw_story, story_of, story_px
from divtrace.figures.text import names, plotly_text
from divtrace.report.model import RunColumns, StringTable
from divtrace.report.runs import read_run
from divtrace.trace.reader import Trace
from divtrace.verdict.records import BlameResult

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

CURVE_PX = 110
LARGEST_LANES_PX = 620
SMALLEST_LANE_PX, LARGEST_LANE_PX = 3, 26
_LABEL_PX = 15


def plot_timeline(trace: Trace, result: BlameResult | None = None) -> Figure:
    """Requests by steps, segments coloured by kind, packed rows above; origin and flip where a result names them.

    Raises:
        DivtraceError: plotly is missing, or `result` is about other runs. TraceError: the trace is damaged.
    """
    label = "" if result is None else _side_of(trace, result)
    return _figure([(trace, label)], result)


def plot_pair(a: Trace, b: Trace, result: BlameResult) -> Figure:
    """Both runs of a blame result, one above the other over the same steps."""
    return _figure([(a, "A"), (b, "B")], result)


def _figure(runs: Sequence[tuple[Trace, str]], result: BlameResult | None) -> Figure:
    indexes = [TraceIndex(trace) for trace, _ in runs]
    columns = [read_run(index, label, StringTable()) for index, (_, label) in zip(indexes, runs, strict=True)]
    stories = [
        None if result is None else story_of(result, run.label, list(index.request_ids))
        for run, index in zip(columns, indexes, strict=True)
    ]
    lane_px = _lane_px(max(len(run.requests) for run in columns))
    steps = max(len(run.steps.packed_rows) for run in columns)
    heights: list[float] = []
    for run, story in zip(columns, stories, strict=True):
        heights += [CURVE_PX, max(len(run.requests), 1) * lane_px + story_px(story, steps)]
    figure = new_panes(heights)
    legend: set[str] = set()
    for number, (index, run, story) in enumerate(zip(indexes, columns, stories, strict=True)):
        draw_row_curve(figure, 2 * number + 1, run, legend)
        draw_lanes(figure, 2 * number + 2, index, run, lane_px, legend)
        _draw_lane_axis(figure, 2 * number + 2, run, story_px(story, steps) / lane_px, lane_px)
        if story is not None:
            draw_story(figure, 2 * number + 2, story, lane_px, steps)
    figure.update_xaxes(title_text="step", row=len(heights), col=1)
    return finish(figure, _title(columns, result), sum(heights) + 14 * (len(heights) - 1))


def _side_of(trace: Trace, result: BlameResult) -> str:
    if not isinstance(result, BlameResult):
        raise DivtraceError(f"plot_timeline marks what divtrace.blame answered, not {result!r:.60}.")
    for label, summary in (("A", result.diff.run_a), ("B", result.diff.run_b)):
        if os.path.abspath(summary.path) == os.path.abspath(trace.path):  # noqa: PTH100
            return label
    raise DivtraceError(
        f"{trace.path} is neither of the two runs that were blamed: {result.diff.run_a.path}, {result.diff.run_b.path}."
    )


def _lane_px(requests: int) -> float:
    return min(LARGEST_LANE_PX, max(SMALLEST_LANE_PX, LARGEST_LANES_PX / max(requests, 1)))


def _draw_lane_axis(figure: Figure, row: int, run: RunColumns, above: float, lane_px: float) -> None:
    """Names of requests, as many as have room, the first request on top; `above` it so many lanes stay free."""
    every = max(1, round(_LABEL_PX / lane_px + 0.49))
    ticks = list(range(0, len(run.requests), every))
    figure.update_yaxes(
        tickmode="array",
        tickvals=ticks,
        ticktext=names(run.requests[tick] for tick in ticks),
        range=[max(len(run.requests), 1) - 0.5, -0.5 - above],
        showgrid=False,
        title_text=f"run {run.label}" if run.label else None,
        row=row,
        col=1,
    )


def _title(runs: Sequence[RunColumns], result: BlameResult | None) -> str:
    own = [f"{run.label} {run.name}".strip() + f": {run.ending}" for run in runs]
    below = "<br>".join(f"<sup>{plotly_text(text, 110)}</sup>" for text in ["; ".join(own)])
    if result is None:
        return plotly_text(runs[0].name, 60) + "<br>" + f"<sup>{plotly_text(runs[0].ending, 110)}</sup>"
    origins = result.origins
    what = ""
    if origins is not None:
        verb = "flips" if origins.flipped else "differs"
        what = f": {plotly_text(origins.request_a, 40)} {verb} at position {origins.position}"
    return f"{result.verdict.value}, {result.confidence.value}{what}<br>{below}"
