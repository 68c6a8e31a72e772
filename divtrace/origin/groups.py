"""Origin rows made into origins: one per pair of steps, with batch, suspects, crossing, drift and
circumstances.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from divtrace.align.index import Integers, SegmentRecord
from divtrace.align.layers import magnitude_drift
from divtrace.align.runs import RunPair
from divtrace.origin.batches import batch_record, find_crossings, own_segment
from divtrace.origin.circumstances import circumstances_of, were_taken_over
from divtrace.origin.faults import FaultFinder
from divtrace.origin.finite import rows_not_finite
from divtrace.origin.plans import Plans
from divtrace.origin.records import (
    Drift,
    InputFault,
    Origin,
    OriginKind,
    PositionRange,
    SiteComparison,
)
from divtrace.origin.sites import OwnRow, SiteComparer, classes_of, sites_between
from divtrace.origin.walk import DifferingRows


@dataclass(frozen=True, slots=True)
class Place:
    """Where an origin lies: producers and steps in both runs, lowest differing layer, which tensor, which
    positions.
    """

    request_a: int
    step_a: int
    request_b: int
    step_b: int
    layer: int
    tensor: str
    positions: tuple[PositionRange, ...]
    rows: int
    reused: bool
    computed_position: int


class OriginMaker:
    """Makes origins of one decision: the steps of the decision and the numbers of its request in A and B."""

    def __init__(self, runs: RunPair, faults: FaultFinder, steps: tuple[int, int], requests: tuple[int, int]) -> None:
        self._runs = runs
        self._faults = faults
        self._decided_a, self._decided_b = steps
        self._decided_requests = requests
        self.sites = SiteComparer(Plans(runs.a), Plans(runs.b))

    def from_rows(self, rows: DifferingRows) -> tuple[Origin, ...]:
        """One origin per pair of producing steps, in the order of run B's execution."""
        return tuple(self._origin_of(group) for group in self._groups(rows))

    def from_decision(
        self, request_a: int, request_b: int, position: int, tensor: str, not_finite: tuple[str, ...] = ()
    ) -> Origin:
        """The decision itself: its logits (or its token) differ while every KV row that it read is equal."""
        at = (PositionRange(position, position),)
        place = Place(
            request_a,
            self._decided_a,
            request_b,
            self._decided_b,
            self._runs.a.layers,
            tensor,
            at,
            1,
            False,
            position - 1,
        )
        return self._origin(place, None, not_finite)

    def _groups(self, rows: DifferingRows) -> Iterator[DifferingRows]:
        a, b = self._runs.a, self._runs.b
        keys = np.stack(
            [
                b.row_steps[rows.records_b],
                a.row_steps[rows.records_a],
                a.row_requests[rows.records_a],
                b.row_requests[rows.records_b],
            ],
            axis=1,
        )
        _, inverse = np.unique(keys, axis=0, return_inverse=True)
        members = np.argsort(inverse.reshape(-1), kind="stable")
        cuts = np.flatnonzero(np.diff(inverse.reshape(-1)[members])) + 1
        for group in np.split(members, cuts) if members.size else ():
            yield rows.take(group)

    def _origin_of(self, rows: DifferingRows) -> Origin:
        found = rows.differences
        layer = int(found.first_layer.min())
        lowest = found.first_layer == layer
        key, value = bool(found.key_differs[lowest].any()), bool(found.value_differs[lowest].any())
        runs = self._runs
        makers = int(runs.a.row_requests[rows.records_a[0]]), int(runs.b.row_requests[rows.records_b[0]])
        place = Place(
            request_a=makers[0],
            step_a=int(runs.a.row_steps[rows.records_a[0]]),
            request_b=makers[1],
            step_b=int(runs.b.row_steps[rows.records_b[0]]),
            layer=layer,
            tensor="both" if key and value else "key" if key else "value",
            positions=position_ranges(rows.positions),
            rows=int(rows.positions.size),
            reused=bool(rows.reused.any()) or were_taken_over(runs, makers, self._decided_requests),
            computed_position=int(rows.positions[lowest].min()),
        )
        moved = magnitude_drift(runs, rows.records_a[lowest], rows.records_b[lowest], layer)
        not_finite = rows_not_finite(runs, rows.records_a[lowest], rows.records_b[lowest], layer)
        return self._origin(place, Drift(*moved), not_finite)

    def _origin(self, place: Place, drift: Drift | None, not_finite: tuple[str, ...]) -> Origin:
        runs = self._runs
        batch_a, batch_b = batch_record(runs.a, place.step_a), batch_record(runs.b, place.step_b)
        own = runs.a.request_ids[place.request_a], runs.b.request_ids[place.request_b]
        computed = self._own_rows(place)
        changed = self.sites.changed(place.step_a, place.step_b, computed)
        between = sites_between(place.layer, runs.a.layers, place.tensor)
        suspects = tuple(site for site in changed if between(site))
        faults = self._faults_of(place)
        all_between = [s for s in self.sites.b.sites(place.step_b).values() if between(s)]
        return Origin(
            kind=_kind(place, suspects, faults, not_finite),
            step_a=place.step_a,
            step_b=place.step_b,
            request_a=own[0],
            request_b=own[1],
            batch_a=batch_a,
            batch_b=batch_b,
            layer=place.layer,
            tensor=place.tensor,
            positions=place.positions,
            rows=place.rows,
            site_classes=classes_of(_by_path(suspects) or suspects or all_between),
            suspects=_by_path(suspects) or suspects,
            crossings=find_crossings(runs, batch_a, batch_b, own, changed),
            drift=drift,
            steps_before_a=self._decided_a - place.step_a,
            steps_before_b=self._decided_b - place.step_b,
            circumstances=circumstances_of(
                runs, (place.request_a, place.step_a), (place.request_b, place.step_b), place.reused, _by_path(suspects)
            ),
            faults=faults,
            packed_row_a=computed[0].packed_row if computed else 0,
            packed_row_b=computed[1].packed_row if computed else 0,
            not_finite=not_finite,
        )

    def _own_rows(self, place: Place) -> tuple[OwnRow, OwnRow] | None:
        """Where the first row of the lowest layer was computed; None where a trace holds no such segment."""
        left = own_segment(self._runs.a, place.step_a, place.request_a)
        right = own_segment(self._runs.b, place.step_b, place.request_b)
        if left is None or right is None:
            return None
        return _own_row(left, place.computed_position), _own_row(right, place.computed_position)

    def _faults_of(self, place: Place) -> tuple[InputFault, ...]:
        """Faults at the origin's own rows, or found in what its step read."""
        read = (
            *self._faults.changes_read("A", place.request_a, place.step_a),
            *self._faults.changes_read("B", place.request_b, place.step_b),
        )
        steps = {"A": place.step_a, "B": place.step_b}
        here = (
            fault
            for fault in self._faults.found
            if fault.kind != "never written"
            and fault.step == steps[fault.run]
            and any(span.first <= fault.position <= span.last for span in place.positions)
        )
        return (*here, *read)


def position_ranges(positions: Integers) -> tuple[PositionRange, ...]:
    """Runs of consecutive positions."""
    ordered = np.unique(positions)
    parts = np.split(ordered, np.flatnonzero(np.diff(ordered) > 1) + 1) if ordered.size else []
    return tuple(PositionRange(int(part[0]), int(part[-1])) for part in parts)


def _own_row(segment: SegmentRecord, position: int) -> OwnRow:
    inside = position - segment.first_position
    return OwnRow(segment.rows, inside, segment.first_row + inside)


def _by_path(sites: tuple[SiteComparison, ...]) -> tuple[SiteComparison, ...]:
    return tuple(site for site in sites if site.changed == "path")


def _kind(
    place: Place, suspects: tuple[SiteComparison, ...], faults: tuple[InputFault, ...], not_finite: tuple[str, ...]
) -> OriginKind:
    if any(fault.kind in ("wrong token", "wrong position") for fault in faults):
        return OriginKind.WRONG_INPUT
    if any(fault.kind == "changed" for fault in faults):
        return OriginKind.CHANGED_AFTER_WRITING
    if any(fault.kind == "never written" for fault in faults):
        return OriginKind.NEVER_WRITTEN
    if place.tensor == "token":
        return OriginKind.SELECTION
    if _by_path(suspects):
        return OriginKind.KERNEL_PATH
    if len(not_finite) == 1:
        return OriginKind.NOT_FINITE
    return OriginKind.SELECTOR_INPUT if suspects else OriginKind.UNEXPLAINED
