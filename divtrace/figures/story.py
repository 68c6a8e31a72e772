"""Origin and flip over the lanes of a run, joined by an arrow. Must not know how they were found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from divtrace.errors import DivtraceError
from divtrace.figures.library import load_plotly
from divtrace.figures.palette import ACCENT, INK, MARK, MUTED, PAGE
from divtrace.figures.text import plotly_text

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from divtrace.verdict.records import BlameResult

_ARROW_PX, _LINE_PX, _NEAR = 14, 16, 0.4


@dataclass(frozen=True, slots=True)
class Place:
    """A step and a request's lane in one run."""

    step: int
    lane: int


@dataclass(frozen=True, slots=True)
class Story:
    """What is marked in one run: origins, the one that the verdict is about first, and the decision with its words."""

    origins: tuple[Place, ...]
    decision: Place | None
    decision_words: str

    @property
    def first(self) -> Place | None:
        """The origin that the verdict is about."""
        return self.origins[0] if self.origins else None

    def needs_two_lines(self, steps: int) -> bool:
        """True when the words of origin and decision would lie over each other in a picture of so many steps."""
        if self.first is None or self.decision is None or self.first.step == self.decision.step:
            return False
        return abs(self.decision.step - self.first.step) < _NEAR * steps


def story_px(story: Story | None, steps: int) -> int:
    """Height of the lane above the first request in which a story is told, in pixels."""
    if story is None:
        return 0
    return _ARROW_PX + _LINE_PX * (3 if story.needs_two_lines(steps) else 2)


def story_of(result: BlameResult, run: str, requests: list[str]) -> Story | None:
    """The marks for run `A` or `B`, whose request ids are `requests` by lane; None where blame found no decision.

    Raises:
        DivtraceError: the result names a request that this run has not.
    """
    origins = result.origins
    if origins is None:
        return None
    lanes = {request: lane for lane, request in enumerate(requests)}
    is_a = run == "A"
    causes = (
        set()
        if result.proof is None
        else {(result.proof.candidates[i].step_a, result.proof.candidates[i].step_b) for i in result.proof.cause}
    )
    ordered = sorted(origins.origins, key=lambda o: (o.step_a, o.step_b) not in causes)
    named = [(o.step_a, o.request_a) if is_a else (o.step_b, o.request_b) for o in ordered]
    decision = (origins.step_a, origins.request_a) if is_a else (origins.step_b, origins.request_b)
    missing = next((request for _, request in (*named, decision) if request not in lanes), None)
    if missing is not None:
        raise DivtraceError(f"this trace has no request {missing!r}; it is not the run that was blamed.")
    token = origins.token_a if is_a else origins.token_b
    word = "flip" if origins.flipped else "decision"
    return Story(
        origins=tuple(Place(step, lanes[request]) for step, request in named),
        decision=Place(decision[0], lanes[decision[1]]) if decision[0] is not None else None,
        decision_words=f"{word}, step {decision[0]}: “{plotly_text(token.text, 24)}”",
    )


def draw_story(figure: Figure, row: int, story: Story, lane_px: float, steps: int) -> None:
    """Mark a story over the lanes in pane `row`: in a lane of its own above the first request, and at the requests."""
    height = -0.5 - _ARROW_PX / lane_px
    first, decision = story.first, story.decision
    places = [place for place in (*story.origins, decision) if place is not None]
    if not places:
        return
    _guides(figure, row, places, height)
    if first is not None and decision is not None and first.step != decision.step:
        _arrow(figure, row, first.step + 0.5, decision.step + 0.5, height)
    if first is not None:
        together = decision is not None and decision.step == first.step
        more = f" (first of {len(story.origins)})" if len(story.origins) > 1 else ""
        words = f"origin{more}, step {first.step}"
        if together:
            words = f"origin{more} and {story.decision_words}"
        _marker(figure, row, list(story.origins), height, "diamond", MARK, f"origin{more}")
        line = 1 if story.needs_two_lines(steps) else 0
        _label(figure, row, first.step, height, words, MARK, "left" if first.step < steps * 0.6 else "right", line)
    if decision is not None:
        _marker(
            figure, row, [decision], height, "star", ACCENT, "flip" if "flip" in story.decision_words else "decision"
        )
        if first is None or first.step != decision.step:
            anchor = "left" if decision.step < steps * 0.3 else "right"
            _label(figure, row, decision.step, height, story.decision_words, ACCENT, anchor, 0)


def _guides(figure: Figure, row: int, places: list[Place], height: float) -> None:
    xs: list[float | None] = []
    ys: list[float | None] = []
    for place in places:
        xs += [place.step + 0.5, place.step + 0.5, None]
        ys += [height, place.lane, None]
    line = {"color": MUTED, "width": 1, "dash": "dot"}
    guides = load_plotly().Scatter(x=xs, y=ys, mode="lines", line=line, showlegend=False, hoverinfo="skip")
    figure.add_trace(guides, row=row, col=1)


def _marker(figure: Figure, row: int, places: list[Place], height: float, symbol: str, colour: str, words: str) -> None:
    largest = 15 if symbol == "star" else 14
    sizes = [largest] + [largest - 5] * (len(places) - 1)
    both = [*places[::-1], *places[::-1]]  # the first place last, so that it lies above the others
    marks = load_plotly().Scatter(
        x=[place.step + 0.5 for place in both],
        y=[*([height] * len(places)), *(place.lane for place in places[::-1])],
        mode="markers",
        marker={
            "symbol": symbol,
            "size": sizes[::-1] * 2,
            "color": colour,
            "opacity": 1,
            "line": {"color": PAGE, "width": 1.5},
        },
        customdata=[place.step for place in both],
        hovertemplate=f"{words}, step %{{customdata}}<extra></extra>",
        showlegend=False,
        cliponaxis=False,
    )
    figure.add_trace(marks, row=row, col=1)


def _arrow(figure: Figure, row: int, start: float, end: float, height: float) -> None:
    axes: dict[str, Any] = {"row": row, "col": 1}
    x_axis, y_axis = (axis.plotly_name.replace("axis", "") for axis in figure.get_subplot(row, 1))
    figure.add_annotation(
        x=end, y=height, ax=start, ay=height, axref=x_axis, ayref=y_axis, text="", showarrow=True,
        arrowhead=2, arrowsize=1.2, arrowwidth=1.6, arrowcolor=INK, standoff=8, startstandoff=6, **axes,
    )  # fmt: skip


def _label(figure: Figure, row: int, step: int, height: float, words: str, colour: str, anchor: str, line: int) -> None:
    """Words above a mark, in the first line (0) or the one above it."""
    figure.add_annotation(
        x=step + 0.5, y=height, text=f"<b>{words}</b>", showarrow=False, xanchor=anchor, yanchor="bottom",
        yshift=7 + _LINE_PX * line, xshift=-6 if anchor == "left" else 6, font={"color": colour, "size": 12},
        row=row, col=1,
    )  # fmt: skip
