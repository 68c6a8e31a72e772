"""The plotting library, loaded when a figure is drawn, and what all figures have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from divtrace.errors import DivtraceError
from divtrace.figures.palette import INK, LINE, MUTED, PAGE

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FONT = 'system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif'
MOST_SHARP_POINTS = 6_000
"""Above so many points a curve is drawn with WebGL: quicker, and a little less sharp."""


def load_plotly() -> Any:
    """The module `plotly.graph_objects`.

    Raises:
        DivtraceError: plotly is not installed; says how to get it.
    """
    try:
        import plotly.graph_objects
    except ImportError:
        raise DivtraceError("figures need plotly, which is not installed; run: pip install 'divtrace[plot]'.") from None
    return plotly.graph_objects


def new_panes(heights: Sequence[float], gap_px: float = 14) -> Figure:
    """An empty figure of panes below each other with one x axis for all; heights in pixels."""
    load_plotly()
    from plotly.subplots import make_subplots

    total = sum(heights) + gap_px * (len(heights) - 1)
    return make_subplots(
        rows=len(heights),
        cols=1,
        shared_xaxes="all",
        row_heights=[height / sum(heights) for height in heights],
        vertical_spacing=gap_px / total,
    )


def finish(figure: Figure, title: str, height_px: float) -> Figure:
    """Title, legend, fonts and colours; `title` is already escaped."""
    margins = {"l": 10, "r": 16, "t": 58, "b": 104}
    figure.update_layout(
        title={"text": title, "x": 0.01, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 12}},
        font={"family": FONT, "size": 12, "color": INK},
        height=height_px + margins["t"] + margins["b"],
        margin=margins,
        paper_bgcolor=PAGE,
        plot_bgcolor=PAGE,
        barmode="overlay",
        hovermode="closest",
        hoverlabel={"align": "left"},
        legend={"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0.005, "yanchor": "bottom"},
    )
    figure.update_xaxes(gridcolor=LINE, zeroline=False, linecolor=LINE, ticks="outside", tickcolor=LINE)
    figure.update_yaxes(gridcolor=LINE, zeroline=False, automargin=True, tickfont={"color": MUTED})
    return figure


def curve(points: int) -> Any:
    """The class of a curve of so many points."""
    plotly = load_plotly()
    return plotly.Scatter if points <= MOST_SHARP_POINTS else plotly.Scattergl
