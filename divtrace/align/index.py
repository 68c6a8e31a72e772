"""One trace as whole columns, with the look-ups that comparing needs.

Owns the narrow columns of `steps`, `segments`, `rows`, `sampled` and `completions` (read once, a few
bytes a row) and checks every offset in them before use. The wide columns (hashes per layer, top-k logits)
stay in the file and are gathered by row in bounded pieces. Must not know that a second trace exists.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.errors import TraceError
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level

Integers = npt.NDArray[np.int64]
SEGMENT_KINDS = ("prefill", "decode", "verify", "recompute")
FAILED = "error"
PIECE_ROWS = 16_384
LARGEST_HOLE_ROWS = 512


@dataclass(frozen=True, slots=True)
class Decisions:
    """Committed decisions of one request, by position: all arrays of shape (decisions,), int64.

    `records` are row numbers of table `sampled`. Positions and steps never decrease.
    """

    positions: Integers
    steps: Integers
    records: Integers
    chosen: Integers


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """One segment of a step, as the trace holds it; `number` is its row in table `segments`."""

    number: int
    step: int
    request: int
    kind: str
    first_position: int
    rows: int
    first_row: int
    cached_tokens: int
    wanted_logits: int


class TraceIndex:
    """Column look-ups over an open trace. Request numbers are rows of table `requests`."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.layers = int(trace.header.layers)
        self.request_ids: tuple[str, ...] = tuple(trace.request_ids())

    @property
    def name(self) -> str:
        """File name without its ending: what reports call this run."""
        return PurePath(str(self.trace.path)).stem

    def has(self, level: Level) -> bool:
        """True when the trace was recorded at `level` or above."""
        return Level(self.trace.header.level).includes(level)

    def column(self, table: str, column: str) -> Integers:
        """A whole narrow column as int64, shape (rows,)."""
        return self.trace.column(table, column).astype(np.int64)

    @cached_property
    def row_steps(self) -> Integers:
        """Step of each record of `rows`."""
        return self.column("rows", "step")

    @cached_property
    def row_requests(self) -> Integers:
        """Request number of each record of `rows`."""
        return self.column("rows", "request")

    @cached_property
    def row_positions(self) -> Integers:
        """Position of each record of `rows`."""
        return self.column("rows", "position")

    @cached_property
    def row_digests(self) -> npt.NDArray[np.uint64]:
        """Digest over all layers of each record of `rows`; only where the trace holds level kv."""
        return self.trace.column("rows", "digest").astype(np.uint64, copy=False)

    @cached_property
    def logits_hashes(self) -> npt.NDArray[np.uint64]:
        """Hash of the raw logits of each record of `sampled`; only where the trace holds level logits."""
        return self.trace.column("sampled", "logits_hash").astype(np.uint64, copy=False)

    @cached_property
    def gaps(self) -> npt.NDArray[np.float32]:
        """Gap of each record of `sampled`; only where the trace holds level logits."""
        return self.trace.column("sampled", "gap").astype(np.float32, copy=False)

    @cached_property
    def step_row_offsets(self) -> Integers:
        """First record of `rows` of each step."""
        return self.column("steps", "row_offset")

    @cached_property
    def _segment_columns(self) -> Mapping[str, Integers]:
        names = ["step", "request", "kind", "first_position", "rows", "first_row", "token_offset"]
        names += ["cached_tokens", "wanted_logits"]
        columns = {name: self.column("segments", name) for name in names}
        if np.any(np.diff(columns["step"]) < 0):
            raise TraceError(f"{self.trace.path}: segments.step is out of order; the file is damaged.")
        return columns

    @cached_property
    def _segment_first_records(self) -> Integers:
        """First record of `rows` of each segment: increasing, because segments lie in execution order."""
        columns = self._segment_columns
        return self.step_row_offsets[columns["step"]] + columns["first_row"]

    def segments_of_step(self, step: int) -> tuple[SegmentRecord, ...]:
        """The batch of `step`, in row order."""
        steps = self._segment_columns["step"]
        start, stop = np.searchsorted(steps, (step, step + 1))
        return tuple(self._segment(number) for number in range(int(start), int(stop)))

    def _segment(self, number: int) -> SegmentRecord:
        columns = self._segment_columns
        kind = int(columns["kind"][number])
        return SegmentRecord(
            number=number,
            step=int(columns["step"][number]),
            request=int(columns["request"][number]),
            kind=SEGMENT_KINDS[kind] if kind < len(SEGMENT_KINDS) else f"kind-{kind}",
            first_position=int(columns["first_position"][number]),
            rows=int(columns["rows"][number]),
            first_row=int(columns["first_row"][number]),
            cached_tokens=int(columns["cached_tokens"][number]),
            wanted_logits=int(columns["wanted_logits"][number]),
        )

    def segment_numbers(self, records: Integers) -> Integers:
        """Segment (row of table `segments`) that computed each record of `rows`."""
        numbers = np.searchsorted(self._segment_first_records, records, side="right") - 1
        if records.size and int(numbers.min(initial=0)) < 0:
            raise TraceError(f"{self.trace.path}: table rows holds rows of no segment; the file is damaged.")
        return numbers.astype(np.int64)

    def input_tokens(self, records: Integers) -> Integers:
        """Input token id of each record of `rows`."""
        if records.size == 0:
            return np.zeros(0, np.int64)
        numbers = self.segment_numbers(records)
        places = self._segment_columns["token_offset"][numbers] + records - self._segment_first_records[numbers]
        tokens = self._token_list
        if int(places.min()) < 0 or int(places.max()) >= tokens.size:
            raise TraceError(f"{self.trace.path}: segments.token_offset points past token_lists; the file is damaged.")
        return tokens[places]

    @cached_property
    def _token_list(self) -> Integers:
        return self.column("token_lists", "value")

    @cached_property
    def _decision_order(self) -> tuple[Integers, Integers]:
        """Committed records of `sampled` ordered by (request, position), and where each request starts."""
        committed = np.flatnonzero(self.trace.column("sampled", "committed"))
        requests = self.column("sampled", "request")[committed]
        positions = self.column("sampled", "position")[committed]
        steps = self.column("sampled", "step")[committed]
        order = np.lexsort((steps, positions, requests))
        starts = np.searchsorted(requests[order], np.arange(len(self.request_ids) + 1))
        return committed[order].astype(np.int64), starts.astype(np.int64)

    def decisions(self, request: int) -> Decisions:
        """Committed decisions of one request; the earliest wins where a position was decided twice."""
        records, starts = self._decision_order
        mine = records[starts[request] : starts[request + 1]]
        positions = self._sampled_positions[mine]
        first = np.ones(positions.size, bool)
        first[1:] = positions[1:] != positions[:-1]
        mine, positions = mine[first], positions[first]
        steps = np.maximum.accumulate(self._sampled_steps[mine]) if mine.size else self._sampled_steps[mine]
        return Decisions(positions, steps, mine, self._sampled_chosen[mine])

    def attempts(self, request: int) -> Decisions:
        """Committed decisions, and behind them the one at which no token was possible, where there was one."""
        made = self.decisions(request)
        failed = self._failed_records.get(request)
        if failed is None:
            return made
        records = np.append(made.records, failed)
        steps = np.maximum.accumulate(self._sampled_steps[records])
        return Decisions(self._sampled_positions[records], steps, records, self._sampled_chosen[records])

    def failure(self, request: int) -> str:
        """Why no token was possible behind what a request committed; empty where its end was another."""
        if request not in self._failed_records:
            return ""
        place = int(np.flatnonzero(self.column("completions", "request") == request)[0])
        return self.trace.string(int(self.trace.column("completions", "detail_string")[place]))

    @cached_property
    def _failed_records(self) -> Mapping[int, int]:
        """Request number to the record of `sampled` at which it failed: in its last step, behind its last token."""
        found = {}
        for request, (step, reason) in self.finished_steps.items():
            if reason != FAILED:
                continue
            position = len(self.trace.prompt(request)) + self.decisions(request).positions.size
            mine = (self.column("sampled", "request") == request) & (self._sampled_steps == step)
            records = np.flatnonzero(mine & (self._sampled_positions == position))
            if records.size:
                found[request] = int(records[0])
        return found

    def output(self, request: int) -> Integers:
        """Tokens that a request went on with, in position order, whether or not it ended.

        Raises:
            TraceError: they do not start behind the prompt, or a position between two of them is missing.
        """
        decided = self.decisions(request)
        expected = len(self.trace.prompt(request)) + np.arange(decided.positions.size)
        if not np.array_equal(decided.positions, expected):
            name = self.request_ids[request]
            raise TraceError(
                f"{self.trace.path}: committed positions of {name!r} do not follow its prompt one by one; "
                "the file is damaged."
            )
        return self._committed_tokens[decided.records]

    @cached_property
    def _sampled_positions(self) -> Integers:
        return self.column("sampled", "position")

    @cached_property
    def _sampled_steps(self) -> Integers:
        return self.column("sampled", "step")

    @cached_property
    def _sampled_chosen(self) -> Integers:
        return self.column("sampled", "chosen")

    @cached_property
    def _committed_tokens(self) -> Integers:
        return self.trace.committed_tokens().astype(np.int64)

    @cached_property
    def finished_steps(self) -> Mapping[int, tuple[int, str]]:
        """Request number to (step in which it ended, reason); requests that never ended are absent."""
        requests = self.column("completions", "request")
        steps = self.column("completions", "step")
        reasons = self.column("completions", "reason_string")
        return {
            int(r): (int(s), self.trace.string(int(why))) for r, s, why in zip(requests, steps, reasons, strict=True)
        }

    def request_settings(self, request: int) -> Mapping[str, Any]:
        """The request's settings as recorded (max_tokens, sampling, stop rules, arrival)."""
        place = int(self.column("requests", "settings_string")[request])
        try:
            settings = json.loads(self.trace.string(place) or "{}")
        except json.JSONDecodeError:
            raise TraceError(
                f"{self.trace.path}: settings of request {request} are not JSON; the file is damaged."
            ) from None
        return settings if isinstance(settings, dict) else {}

    def gather(self, table: str, column: str, records: Integers) -> npt.NDArray[Any]:
        """Rows of a wide column, shape (records, width), in the order of `records`.

        Reads contiguous spans of at most `PIECE_ROWS` rows, so memory is bounded by the answer and one span.
        """
        if records.size == 0:
            return self.trace.column(table, column, 0, 0)
        ordered, inverse = np.unique(records, return_inverse=True)
        if int(ordered[0]) < 0 or int(ordered[-1]) >= self.trace.length(table):
            raise TraceError(f"{self.trace.path}: a record number points past table {table}; the file is damaged.")
        pieces = []
        for span in _spans(ordered):
            start = int(span[0])
            pieces.append(self.trace.column(table, column, start, int(span[-1]) + 1)[span - start])
        return np.concatenate(pieces)[inverse.reshape(-1)]


def _spans(ordered: Integers) -> list[Integers]:
    """Cut increasing record numbers where a hole is large or a span would exceed `PIECE_ROWS`."""
    cuts = set((np.flatnonzero(np.diff(ordered) > LARGEST_HOLE_ROWS) + 1).tolist())
    spans: list[Integers] = []
    for part in np.split(ordered, sorted(cuts)):
        pieces = (part - part[0]) // PIECE_ROWS
        spans.extend(np.split(part, np.flatnonzero(np.diff(pieces)) + 1))
    return spans
