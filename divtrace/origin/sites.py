"""Which sites changed between two steps, and which of them lie between an equal record and a differing
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from divtrace.origin.plans import Plans, PlanSite
from divtrace.origin.records import SiteClass, SiteComparison

ROW_INVARIANT_PATHS = frozenset({"gemv", "row", "invariant"})


@dataclass(frozen=True, slots=True)
class OwnRow:
    """Where one run computed the row in question: its segment's rows, its place among them, its packed row in the
    step.
    """

    segment_rows: int
    place_in_segment: int
    packed_row: int


class SiteComparer:
    """Compares steps of run A with steps of run B; equal pairs of plans are compared once."""

    def __init__(self, a: Plans, b: Plans) -> None:
        self.a = a
        self.b = b
        self._known: dict[tuple[int, int], tuple[SiteComparison, ...]] = {}

    def changed(self, step_a: int, step_b: int, own: tuple[OwnRow, OwnRow] | None = None) -> tuple[SiteComparison, ...]:
        """Sites whose path differs, or whose call differs in a way that the path's bits may depend on: rows, or place.

        `own` is the row in question in A and B: attention sees its segment, and a tiled kernel its place in the call.
        Without it only paths and row counts of whole calls are compared.
        """
        plans = self.a.number(step_a), self.b.number(step_b)
        if plans not in self._known:
            self._known[plans] = tuple(self._compare(step_a, step_b))
        compared = (_seen_from(site, own) for site in self._known[plans])
        return tuple(site for site in compared if site.changed)

    def paths_changed(self, step_a: int, step_b: int) -> tuple[SiteComparison, ...]:
        """Only sites whose path differs."""
        return tuple(site for site in self.changed(step_a, step_b) if site.changed == "path")

    def _compare(self, step_a: int, step_b: int) -> Iterable[SiteComparison]:
        sites_b = self.b.sites(step_b)
        for name, left in self.a.sites(step_a).items():
            right = sites_b.get(name)
            if right is None:
                continue
            yield SiteComparison(
                site=name,
                site_class=left.site_class,
                layer=left.layer,
                path_a=left.path,
                path_b=right.path,
                rows_a=left.rows,
                rows_b=right.rows,
                decided_by_a=left.decided_by,
                decided_by_b=right.decided_by,
                changed=_change(left, right),
            )


def sites_between(layer: int, layers: int, tensor: str) -> Callable[[PlanSite | SiteComparison], bool]:
    """Tell sites that compute record `layer` (the logits, when it equals `layers`) from records below it.

    Where only K (or only V) differs, the hidden state was equal, and only the projection that makes it
    remains.
    """

    def lies_between(site: PlanSite | SiteComparison) -> bool:
        feeds = _feeds_only(site.site)
        if site.layer is None:
            return site.site_class is SiteClass.HEAD if layer == layers else layer == 0 and _is_embedding(site)
        if site.layer == layer:
            others = {"query"} | ({"value"} if tensor == "key" else {"key"} if tensor == "value" else set())
            return site.site_class is SiteClass.QKV and feeds not in others
        return site.layer == layer - 1 and tensor not in ("key", "value") and feeds not in ("key", "value")

    return lies_between


def classes_of(sites: Iterable[PlanSite | SiteComparison]) -> tuple[SiteClass, ...]:
    """Distinct classes, in execution order."""
    found = {site.site_class for site in sites}
    return tuple(site_class for site_class in SiteClass if site_class in found)


def _feeds_only(site: str) -> str | None:
    return PlanSite(site, "linear", "", "", 0).feeds_only


def _is_embedding(site: PlanSite | SiteComparison) -> bool:
    return site.site_class is SiteClass.EMBEDDING


def _change(left: PlanSite, right: PlanSite) -> str:
    if left.path != right.path:
        return "path"
    if left.operation == "attention" or left.rows == right.rows or _is_row_invariant(left.path):
        return ""
    return "rows"


def _seen_from(site: SiteComparison, own: tuple[OwnRow, OwnRow] | None) -> SiteComparison:
    """The comparison with what depends on the row in question filled in."""
    if own is None:
        return site
    left, right = own
    is_attention = site.site_class is SiteClass.ATTENTION
    if is_attention:
        site = replace(site, rows_a=left.segment_rows, rows_b=right.segment_rows)
    if site.changed or _is_row_invariant(site.path_a):
        return site
    if site.rows_a != site.rows_b:
        return replace(site, changed="rows")
    place_a, place_b = ((row.place_in_segment if is_attention else row.packed_row) for row in own)
    return replace(site, changed="place") if place_a != place_b else site


def _is_row_invariant(path: str) -> bool:
    return path in ROW_INVARIANT_PATHS or path.startswith("tile-")
