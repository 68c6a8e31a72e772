"""Steps of a run, and one step in full: batch, paths, decisions, events, times. Data only; no terminal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from divtrace.align.index import SEGMENT_KINDS
from divtrace.errors import DivtraceError
from divtrace.show.paths import PathGroup, PlanPaths
from divtrace.show.safe_text import decoded
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level

_NUMBERS = ("packed_rows", "head_rows", "max_query_length", "max_key_length", "running", "waiting")
_BLOCKS = ("blocks_used", "blocks_cached", "blocks_total")
_SEGMENT_COLUMNS = (
    "request",
    "kind",
    "first_position",
    "rows",
    "first_row",
    "cached_tokens",
    "wanted_logits",
    "proposed_tokens",
)
_TIMES = ("schedule_s", "draft_s", "forward_s", "sample_s")
_FLAGS = ("NaN or Inf in the logits", "NaN or Inf in K/V", "audit failure")


@dataclass(frozen=True, slots=True)
class SegmentView:
    """One segment of a batch."""

    request: str
    kind: str
    first_position: int
    rows: int
    first_row: int
    cached_tokens: int
    wanted_logits: int
    proposed_tokens: int


@dataclass(frozen=True, slots=True)
class DecisionView:
    """One sampled row: the token decided at `position`; `gap` is None below level logits."""

    request: str
    position: int
    token: int
    text: str
    is_committed: bool
    gap: float | None


@dataclass(frozen=True, slots=True)
class EventView:
    """An admission, preemption, cancellation or end."""

    step: int
    request: str
    kind: str
    detail: str


@dataclass(frozen=True, slots=True)
class DraftForwardView:
    """One packed forward of the draft model."""

    forward: int
    packed_rows: int
    paths: tuple[PathGroup, ...]


@dataclass(frozen=True, slots=True)
class StepView:
    """One step. Times in seconds; `flags` in words."""

    step: int
    packed_rows: int
    head_rows: int
    max_query_length: int
    max_key_length: int
    running: int
    waiting: int
    blocks_used: int
    blocks_cached: int
    blocks_total: int
    schedule_s: float
    draft_s: float
    forward_s: float
    sample_s: float
    flags: tuple[str, ...]
    segments: tuple[SegmentView, ...]
    paths: tuple[PathGroup, ...]
    draft_forwards: tuple[DraftForwardView, ...]
    decisions: tuple[DecisionView, ...]
    events: tuple[EventView, ...]


class StepReader:
    """Reads single steps of an open trace; keeps look-ups that all steps share."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ids = trace.request_ids()
        self.paths = PlanPaths(trace)
        self._event_steps = trace.column("events", "step")
        self._draft_steps = trace.column("draft_forwards", "step")

    def step(self, number: int) -> StepView:
        """One step in full.

        Raises:
            DivtraceError: the trace has no such step.
        """
        self._check(number)
        trace = self.trace
        numbers: dict[str, Any] = {name: self._cell(name, number) for name in (*_NUMBERS, *_BLOCKS)}
        times: dict[str, Any] = {name: float(trace.column("steps", name, number, number + 1)[0]) for name in _TIMES}
        flags = self._cell("flags", number)
        return StepView(
            step=number,
            **numbers,
            **times,
            flags=tuple(words for bit, words in enumerate(_FLAGS) if flags >> bit & 1),
            segments=self.segments(number),
            paths=self.paths.groups(self._cell("plan", number)),
            draft_forwards=self._draft_forwards(number),
            decisions=self._decisions(number),
            events=self.events(number, number),
        )

    def segments(self, number: int) -> tuple[SegmentView, ...]:
        """The batch of a step, in row order."""
        start = self._cell("segment_offset", number)
        stop = start + self._cell("segment_count", number)
        columns = (self.trace.column("segments", name, start, stop).tolist() for name in _SEGMENT_COLUMNS)
        rows = zip(*columns, strict=True)
        return tuple(SegmentView(self.ids[request], kind_name(kind), *rest) for request, kind, *rest in rows)

    def events(self, first: int, last: int) -> tuple[EventView, ...]:
        """Events of steps `first` to `last`, both included."""
        where = ((self._event_steps >= first) & (self._event_steps <= last)).nonzero()[0].tolist()
        trace = self.trace
        names = ("step", "request", "kind_string", "detail_string")
        columns = [trace.column("events", name) for name in names]
        rows = ([int(column[row]) for column in columns] for row in where)
        return tuple(EventView(s, self.ids[r], trace.string(kind), trace.string(text)) for s, r, kind, text in rows)

    def _draft_forwards(self, number: int) -> tuple[DraftForwardView, ...]:
        trace = self.trace
        views = []
        for row in (self._draft_steps == number).nonzero()[0].tolist():
            cells = (trace.column("draft_forwards", name, row, row + 1) for name in ("forward", "packed_rows", "plan"))
            forward, rows, plan = (int(cell[0]) for cell in cells)
            views.append(DraftForwardView(forward, rows, self.paths.groups(plan)))
        return tuple(views)

    def _decisions(self, number: int) -> tuple[DecisionView, ...]:
        trace = self.trace
        start = self._cell("sampled_offset", number)
        stop = start + self._cell("sampled_count", number)
        names = ("request", "position", "chosen", "committed")
        columns = [trace.column("sampled", name, start, stop).tolist() for name in names]
        has_gaps = trace.header.level.includes(Level.LOGITS)
        gaps = trace.column("sampled", "gap", start, stop).tolist() if has_gaps else [None] * (stop - start)
        return tuple(
            DecisionView(self.ids[request], position, token, decoded(trace.token_text(token)), bool(committed), gap)
            for request, position, token, committed, gap in zip(*columns, gaps, strict=True)
        )

    def _cell(self, column: str, number: int) -> int:
        return int(self.trace.column("steps", column, number, number + 1)[0])

    def _check(self, number: int) -> None:
        count = self.trace.step_count
        if not 0 <= number < count:
            held = f"it holds steps 0 to {count - 1}" if count else "it holds no step"
            raise DivtraceError(f"{self.trace.path} has no step {number}; {held}.")


def kind_name(kind: int) -> str:
    """Name of a segment kind; an unknown number stays visible as such."""
    return SEGMENT_KINDS[kind] if kind < len(SEGMENT_KINDS) else f"kind-{kind}"
