"""Gap and drift of one request's decisions over positions, on a logarithmic scale, with the flip marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from divtrace.align.pairing import RequestPair
from divtrace.align.runs import RunPair
from divtrace.divergence.records import DiffResult, RequestDiff, TokenDivergence
from divtrace.errors import DivtraceError, EvidenceError
from divtrace.figures.library import curve, finish, load_plotly, new_panes
from divtrace.figures.palette import ACCENT, MARK, MUTED, PAGE, RUN_COLOURS
from divtrace.figures.text import plotly_text
from divtrace.report.drift import decision_drift
from divtrace.show.safe_text import decoded
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

HEIGHT_PX = 340
_HOVER = "position %{x}: %{customdata}<br>%{fullData.name} %{y:.3g}<extra></extra>"


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions that both runs made from the same tokens: shape (decisions,); `texts` are A's tokens, escaped."""

    positions: npt.NDArray[np.int64]
    gaps: npt.NDArray[np.float64]
    margin_drifts: npt.NDArray[np.float64]
    largest_drifts: npt.NDArray[np.float64]
    texts: list[str]


def plot_decisions(result: DiffResult, a: Trace, b: Trace, request: str | None = None) -> Figure:
    """Draw the gap in A, the drift of its margin and the largest drift of a logit, for one request.

    Raises:
        DivtraceError: plotly is missing, or no such request. EvidenceError: a trace holds no logits, or no decision
            of the request can be compared.
    """
    runs = RunPair(a, b)
    chosen = _chosen(result, request)
    pair = runs.pairing.find(chosen.id_a)
    decisions = read_decisions(runs, pair)
    figure = new_panes([HEIGHT_PX])
    count = decisions.positions.size
    _line(figure, count, decisions, decisions.gaps, "gap in A", RUN_COLOURS["A"], "circle", "solid")
    _line(figure, count, decisions, decisions.margin_drifts, "drift of the margin", MARK, "diamond", "dash")
    _line(figure, count, decisions, decisions.largest_drifts, "largest drift of a logit", MUTED, "", "dot")
    if chosen.divergence is not None:
        _mark_flip(figure, chosen.divergence, decisions)
    figure.update_yaxes(type="log", title_text="logits", exponentformat="power", dtick=1, range=_decades(decisions))
    figure.update_xaxes(title_text="position")
    return finish(figure, _title(chosen, decisions), HEIGHT_PX)


def read_decisions(runs: RunPair, pair: RequestPair) -> Decisions:
    """The compared decisions of one request.

    Raises:
        EvidenceError: there are none, or their logits were not recorded.
    """
    if not runs.both_have(Level.LOGITS):
        raise EvidenceError("gap and drift need the logits of both runs; record both with --level logits or above.")
    decided = runs.decisions(runs.timeline(pair))
    if decided.positions.size == 0:
        raise EvidenceError(f"no decision of request {pair.id_a!r} was made from the same tokens in both runs.")
    drift = decision_drift(runs, decided)
    texts = {
        token: plotly_text(decoded(runs.a.trace.token_text(token)), 24) for token in set(decided.chosen_a.tolist())
    }
    return Decisions(
        positions=decided.positions,
        gaps=runs.a.gaps[decided.records_a].astype(np.float64),
        margin_drifts=drift.margin,
        largest_drifts=drift.largest,
        texts=[f"“{texts[token]}”" for token in decided.chosen_a.tolist()],
    )


def _chosen(result: DiffResult, request: str | None) -> RequestDiff:
    """The request asked for, else the one that split first, else the first one."""
    if not result.requests:
        raise EvidenceError("the runs have no request in common; there is nothing to draw.")
    if request is not None:
        found = [one for one in result.requests if request in (one.id_a, one.id_b)]
        if not found:
            known = ", ".join(repr(one.id_a) for one in result.requests[:8])
            raise DivtraceError(f"request {request!r} was not compared; there are {known}.")
        return found[0]
    split = [one for one in result.requests if one.divergence is not None]
    return min(split, key=lambda one: (one.divergence.step_b or 0) if one.divergence else 0, default=result.requests[0])


def _line(
    figure: Figure,
    count: int,
    decisions: Decisions,
    values: npt.NDArray[np.float64],
    name: str,
    colour: str,
    symbol: str,
    dash: str,
) -> None:
    shown: list[Any] = np.where(values > 0, values, np.nan).tolist()
    with_marks = bool(symbol) and count <= 2_000
    trace = curve(count)(
        x=decisions.positions.tolist(),
        y=[None if value != value else value for value in shown],
        customdata=decisions.texts,
        name=name,
        mode="lines+markers" if with_marks else "lines",
        line={"color": colour, "width": 1.4, "dash": dash},
        hovertemplate=_HOVER,
    )
    if with_marks:
        trace.marker = {"symbol": symbol, "size": 5, "color": colour}
    figure.add_trace(trace)


def _mark_flip(figure: Figure, flip: TokenDivergence, decisions: Decisions) -> None:
    figure.add_vline(x=flip.position, line={"color": ACCENT, "width": 1.5})
    where = np.flatnonzero(decisions.positions == flip.position)
    in_a, in_b = (plotly_text(token.text, 24) for token in (flip.token_a, flip.token_b))
    words = f"flip at {flip.position}: “{in_a}” in A, “{in_b}” in B"
    is_late = flip.position > (int(decisions.positions[0]) + int(decisions.positions[-1])) / 2
    figure.add_annotation(
        x=flip.position, y=1, yref="paper", text=f"<b>{words}</b>", showarrow=False, yanchor="top",
        xanchor="right" if is_late else "left", xshift=-8 if is_late else 8, font={"color": ACCENT}, bgcolor=PAGE,
    )  # fmt: skip
    if where.size and decisions.gaps[where[0]] > 0:
        star = load_plotly().Scatter(
            x=[flip.position],
            y=[float(decisions.gaps[where[0]])],
            mode="markers",
            marker={"symbol": "star", "size": 15, "color": ACCENT, "line": {"color": PAGE, "width": 1.5}},
            showlegend=False,
            hovertemplate="flip: gap %{y:.3g}<extra></extra>",
        )
        figure.add_trace(star)


def _decades(decisions: Decisions) -> list[float] | None:
    """Powers of ten from below the smallest value to above the largest, with room for the words of the flip."""
    values = np.concatenate([decisions.gaps, decisions.margin_drifts, decisions.largest_drifts])
    values = values[np.isfinite(values) & (values > 0)]
    return [float(np.log10(values.min())) - 0.4, float(np.log10(values.max())) + 1.0] if values.size else None


def _title(request: RequestDiff, decisions: Decisions) -> str:
    drifts = decisions.margin_drifts
    zero, known = int(np.count_nonzero(drifts == 0)), int(np.count_nonzero(np.isfinite(drifts)))
    words = "a token can only flip where the drift reaches the gap"
    if zero:
        words += f"; {zero} of {known} drifts are exactly zero and have no point on this scale"
    return f"gap and drift of {plotly_text(request.id_a, 60)}<br><sup>{words}</sup>"
