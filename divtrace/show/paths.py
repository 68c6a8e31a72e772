"""The paths of a plan grouped by site class, for the target and the draft model. Must not know steps."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.origin.plans import PlanSite
from divtrace.origin.records import SiteClass
from divtrace.trace.reader import Trace

_TEXT_COLUMNS = ("site_string", "operation_string", "path_string", "decided_by_string", "model_string")


@dataclass(frozen=True, slots=True)
class PathGroup:
    """Sites of one class that took the same path for the same reason; `rows` are those of each call."""

    model: str
    site_class: str
    path: str
    decided_by: str
    rows: int
    sites: int


class PlanPaths:
    """Path groups of a trace's plans; each plan is read once."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._groups: dict[int, tuple[PathGroup, ...]] = {}
        self._texts: dict[int, str] = {}

    def groups(self, plan: int) -> tuple[PathGroup, ...]:
        """Groups of the plan in row `plan` of table `plans`, in the order of a layer."""
        if plan not in self._groups:
            self._groups[plan] = self._read(plan)
        return self._groups[plan]

    def _read(self, plan: int) -> tuple[PathGroup, ...]:
        trace = self._trace
        start = int(trace.column("plans", "site_offset", plan, plan + 1)[0])
        stop = start + int(trace.column("plans", "site_count", plan, plan + 1)[0])
        texts = [trace.column("plan_sites", name, start, stop).tolist() for name in _TEXT_COLUMNS]
        rows = trace.column("plan_sites", "rows", start, stop).tolist()
        counts: dict[tuple[str, SiteClass, str, str, int], int] = {}
        for *numbers, row_count in zip(*texts, rows, strict=True):
            site, operation, path, decided_by, model = (self._text(number) for number in numbers)
            site_class = PlanSite(site, operation, path, decided_by, row_count).site_class
            key = (model, site_class, path, decided_by, row_count)
            counts[key] = counts.get(key, 0) + 1
        order = list(SiteClass)
        ordered = sorted(counts.items(), key=lambda item: (item[0][0] == "draft", order.index(item[0][1])))
        return tuple(
            PathGroup(model, str(site_class), path, decided_by, row_count, sites)
            for (model, site_class, path, decided_by, row_count), sites in ordered
        )

    def _text(self, number: int) -> str:
        if number not in self._texts:
            self._texts[number] = self._trace.string(number)
        return self._texts[number]


def main_path(groups: tuple[PathGroup, ...]) -> str:
    """The path that most linear sites of the target took; empty for a plan without any."""
    sites: dict[str, int] = {}
    for group in groups:
        if group.model != "draft" and group.site_class not in (SiteClass.ATTENTION, SiteClass.HEAD):
            sites[group.path] = sites.get(group.path, 0) + group.sites
    return max(sites, key=lambda path: sites[path]) if sites else ""
