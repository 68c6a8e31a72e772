"""The heat map of a probe: one line a kernel, one cell a row count, one colour for row 0's bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from divtrace.figures.library import finish, load_plotly, new_panes
from divtrace.figures.palette import CLASS_COLOURS, PAGE
from divtrace.figures.text import plotly_text
from divtrace.probing.document import cell_text
from divtrace.probing.result import Findings, ProbeResult, class_of
from divtrace.render.text import counted

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LINE_PX, SMALLEST_PX = 20, 120
_HOVER = "%{customdata}<extra></extra>"


def plot_kernel_map(result: ProbeResult) -> Figure:
    """Draw the findings of a probe; cells of one colour and number on a line gave row 0 the same bits.

    Raises:
        DivtraceError: plotly is missing.
    """
    counts = sorted({count for found in result.findings for count in found.row_counts})
    height = max(SMALLEST_PX, LINE_PX * len(result.findings))
    figure = new_panes([height])
    classes = [[_class(found, count) for count in counts] for found in result.findings]
    most = len(CLASS_COLOURS)
    scale = [[edge / most, colour] for place, colour in enumerate(CLASS_COLOURS) for edge in (place, place + 1)]
    cells = load_plotly().Heatmap(
        x=[str(count) for count in counts],
        y=list(range(len(result.findings))),
        z=[[None if number is None else number % most for number in line] for line in classes],
        text=[["" if number is None else str(number + 1) for number in line] for line in classes],
        customdata=[[_words(found, count) for count in counts] for found in result.findings],
        texttemplate="%{text}",
        textfont={"size": 10},
        hovertemplate=_HOVER,
        hoverongaps=False,
        colorscale=scale,
        zmin=-0.5,
        zmax=most - 0.5,
        showscale=False,
        xgap=1,
        ygap=2,
    )
    figure.add_trace(cells)
    figure.update_xaxes(type="category", title_text="rows in the call")
    labels = [_label(found) for found in result.findings]
    figure.update_yaxes(
        autorange="reversed", showgrid=False, tickmode="array", tickvals=list(range(len(labels))), ticktext=labels
    )
    return finish(figure, _title(result), height).update_layout(plot_bgcolor=PAGE)


def _class(found: Findings, count: int) -> int | None:
    return class_of(found, count) if count in found.row_counts else None


def _words(found: Findings, count: int) -> str:
    if count not in found.row_counts:
        return ""
    return f"{_label(found)}<br>{counted(count, 'row')}: {plotly_text(cell_text(found, count))}"


def _label(found: Findings) -> str:
    threads = f", {counted(found.threads, 'thread')}" if found.threads else ""
    return plotly_text(f"{found.operation}, {found.implementation}, {found.shape} {found.dtype}{threads}", 80)


def _title(result: ProbeResult) -> str:
    machine = result.machine
    where = f"{machine.processor}, MLX {machine.mlx_version} on {machine.backend}, numpy with {machine.blas}"
    words = "cells of one number on a line gave row 0 the same bits; 1 are those of the smallest call"
    return f"at which row counts kernels change<br><sup>{plotly_text(where, 110)}; {words}</sup>"
