"""Packed rows of each step as a curve, with the threshold of the kernel policy where it has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from divtrace.figures.library import curve
from divtrace.figures.palette import MARK, RUN_COLOURS
from divtrace.figures.text import plotly_text
from divtrace.report.model import RunColumns

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

_HOVER = "step %{customdata[0]}: packed rows %{customdata[1]}<br>%{customdata[2]}<extra></extra>"


def draw_row_curve(figure: Figure, row: int, run: RunColumns, legend: set[str]) -> None:
    """Add the curve of a run to pane `row`, on a logarithmic scale."""
    rows = run.steps.packed_rows
    if not rows:
        return
    paths = [plotly_text(plan.main) or "no path" for plan in run.plans]
    words = [(step, packed, paths[plan]) for step, (packed, plan) in enumerate(zip(rows, run.steps.plan, strict=True))]
    colour = RUN_COLOURS[run.label]
    drawn = curve(len(rows))(
        x=list(range(len(rows) + 1)),
        y=[value if value > 0 else None for value in (*rows, rows[-1])],
        customdata=[*words, words[-1]],
        mode="lines",
        line={"shape": "hv", "color": colour, "width": 1.5},
        name=f"packed rows in {run.label}" if run.label else "packed rows",
        hovertemplate=_HOVER,
    )
    figure.add_trace(drawn, row=row, col=1)
    if run.threshold is not None:
        _draw_threshold(figure, row, run.threshold, len(rows), legend)
    every = 4 if max(rows) <= 256 else 16
    ticks = [every**power for power in range(8) if every**power <= max(rows) * 1.5]
    figure.update_yaxes(type="log", tickmode="array", tickvals=ticks, title_text="packed rows", row=row, col=1)


def _draw_threshold(figure: Figure, row: int, threshold: int, steps: int, legend: set[str]) -> None:
    name = f"threshold: more than {threshold} rows"
    line = curve(2)(
        x=[0, steps],
        y=[threshold + 0.5] * 2,
        mode="lines",
        line={"color": MARK, "width": 1.5, "dash": "dash"},
        name=name,
        legendgroup=name,
        showlegend=name not in legend,
        hoverinfo="skip",
    )
    legend.add(name)
    figure.add_trace(line, row=row, col=1)
