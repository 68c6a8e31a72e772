"""Which sites changed between two steps, and which of them lie between an equal record and a differing
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from divtrace.origin.plans import Plans, PlanSite
from divtrace.origin.records import SiteClass, SiteComparison

ROW_INVARIANT_PATHS = frozenset({"gemv", "row", "invariant"})


class SiteComparer:
    """Compares steps of run A with steps of run B; equal pairs of plans are compared once."""

    def __init__(self, a: Plans, b: Plans) -> None:
        self.a = a
        self.b = b
        self._known: dict[tuple[int, int], tuple[SiteComparison, ...]] = {}

    def changed(
        self, step_a: int, step_b: int, segment_rows: tuple[int, int] | None = None
    ) -> tuple[SiteComparison, ...]:
        """Sites whose path differs, or whose rows differ on a path whose bits may depend on the row
        count.

        `segment_rows` are the rows of the request's own segment in A and B: what an attention call sees.
        Without them attention counts as changed only where its path differs.
        """
        plans = self.a.number(step_a), self.b.number(step_b)
        if plans not in self._known:
            self._known[plans] = tuple(self._compare(step_a, step_b))
        compared = (_with_segment_rows(site, segment_rows) for site in self._known[plans])
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
    if left.operation == "attention" or left.rows == right.rows:
        return ""
    return "" if left.path in ROW_INVARIANT_PATHS or left.path.startswith("tile-") else "rows"


def _with_segment_rows(site: SiteComparison, segment_rows: tuple[int, int] | None) -> SiteComparison:
    if site.site_class is not SiteClass.ATTENTION or segment_rows is None:
        return site
    rows_a, rows_b = segment_rows
    other_rows = rows_a != rows_b and site.path_a not in ROW_INVARIANT_PATHS
    return replace(site, rows_a=rows_a, rows_b=rows_b, changed=site.changed or ("rows" if other_rows else ""))
