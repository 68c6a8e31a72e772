"""Rows that do not belong where they were read: wrong token, wrong position, never written, changed after
writing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.history import MemoryView
from divtrace.align.index import Integers, TraceIndex
from divtrace.align.runs import RunPair
from divtrace.origin.records import InputFault

LISTED_PER_VIEW = 8


@dataclass(frozen=True, slots=True)
class Change:
    """One line of table `audits`: in `step` a reader found other bytes than were written, or none that
    were.
    """

    kind: str
    request: int
    step: int
    position: int
    layer: int
    expected_hash: int
    found_hash: int


class FaultFinder:
    """Collects faults of both runs while a walk visits their memory. Each fault is reported once.

    `tokens` are those of the blamed request, equal in both runs below the decision: whatever memory a row of the walk
    lies in, at its position it must have been computed from that token, because K and V follow from all tokens before.
    """

    def __init__(self, runs: RunPair, tokens: Integers) -> None:
        self._expected = tokens
        self._runs = {"A": runs.a, "B": runs.b}
        self._changes = {name: _changes(index) for name, index in self._runs.items()}
        self._found: dict[InputFault, None] = {}

    @property
    def found(self) -> tuple[InputFault, ...]:
        """Faults so far, in the order of their finding."""
        return tuple(self._found)

    def check_views(self, request_a: int, a: MemoryView, request_b: int, b: MemoryView) -> None:
        """Compare what each memory held with the tokens and positions of the request that read it."""
        for run, request, view in (("A", request_a, a), ("B", request_b, b)):
            self._check_view(run, request, view)

    def changes_read(self, run: str, request: int, step: int) -> tuple[InputFault, ...]:
        """Audit failures of what `request` read in `step`."""
        return tuple(
            self._fault_of(run, change)
            for change in self._changes[run]
            if change.request == request and change.step == step
        )

    def all_changes(self, run: str, request: int, last_step: int) -> tuple[InputFault, ...]:
        """Audit failures of what `request` read up to `last_step`."""
        return tuple(
            self._fault_of(run, change)
            for change in self._changes[run]
            if change.request == request and change.step <= last_step
        )

    def changed_layer_before(
        self, request_a: int, request_b: int, positions: Integers, steps_a: Integers, steps_b: Integers
    ) -> Integers:
        """Per row the lowest layer of an earlier row that was found changed in a step before the row's own.

        What a row read is known to differ from there on, whatever the hashes at writing say. Shape (rows,).
        """
        lowest = np.full(positions.size, np.iinfo(np.int64).max, np.int64)
        for run, request, steps in (("A", request_a, steps_a), ("B", request_b, steps_b)):
            for change in self._changes[run]:
                if change.request == request:
                    later = (steps > change.step) & (positions > change.position)
                    lowest[later] = np.minimum(lowest[later], change.layer)
        return lowest

    def _check_view(self, run: str, request: int, view: MemoryView) -> None:
        index = self._runs[run]
        name = index.request_ids[request]
        for position in np.flatnonzero(~view.known)[:LISTED_PER_VIEW].tolist():
            self._add(InputFault(run, "never written", name, position, 0, None, "a KV row", "none in the trace"))
        places = np.flatnonzero(view.known)
        records = view.records[places]
        expected, found = self._expected[places], index.input_tokens(records)
        for at in _first(expected != found):
            step = int(index.row_steps[records[at]])
            words = f"token {expected[at]}", f"token {found[at]}"
            self._add(InputFault(run, "wrong token", name, int(places[at]), step, None, *words))
        written_for = index.row_positions[records]
        for at in _first(written_for != places):
            step = int(index.row_steps[records[at]])
            words = f"position {places[at]}", f"position {written_for[at]}"
            self._add(InputFault(run, "wrong position", name, int(places[at]), step, None, *words))

    def _fault_of(self, run: str, change: Change) -> InputFault:
        written = "a KV row" if change.kind == "never_written" else f"hash {change.expected_hash:016x}"
        kind = "never written" if change.kind == "never_written" else "changed"
        name = self._runs[run].request_ids[change.request]
        found = f"hash {change.found_hash:016x}"
        return InputFault(run, kind, name, change.position, change.step, change.layer, written, found)

    def _add(self, fault: InputFault) -> None:
        self._found.setdefault(fault)


def _first(wrong: npt.NDArray[np.bool_]) -> list[int]:
    found: list[int] = np.flatnonzero(wrong)[:LISTED_PER_VIEW].tolist()
    return found


def _changes(index: TraceIndex) -> tuple[Change, ...]:
    """Table `audits`, where the trace has it."""
    trace = index.trace
    if not trace.length("audits"):
        return ()
    names = ("request", "step", "position", "layer", "expected_hash", "found_hash")
    columns = [trace.column("audits", name).tolist() for name in names]
    kinds = [trace.string(number) for number in trace.column("audits", "kind_string").tolist()]
    return tuple(Change(kind, *numbers) for kind, *numbers in zip(kinds, *columns, strict=True))
