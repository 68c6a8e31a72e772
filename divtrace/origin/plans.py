"""The plans of a trace: which path each site took in a step, by what rule, over how many rows. Knows one
run only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from divtrace.align.index import TraceIndex
from divtrace.origin.records import SiteClass

_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)(?:\.|$)")
_QKV_NAMES = frozenset(
    {"q_proj", "k_proj", "v_proj", "qkv_proj", "qkv", "query_key_value", "c_attn", "wq", "wk", "wv", "Wqkv"}
    | {"q", "k", "v"}
)
_QUERY_NAMES = frozenset({"q_proj", "wq", "q"})
_KEY_NAMES = frozenset({"k_proj", "wk", "k"})
_VALUE_NAMES = frozenset({"v_proj", "wv", "v"})
_ATTENTION_PARTS = ("attn", "attention")
_MLP_PARTS = ("mlp", "feed_forward", "ffn", "moe", "experts")


@dataclass(frozen=True, slots=True)
class PlanSite:
    """One site of a plan."""

    site: str
    operation: str
    path: str
    decided_by: str
    rows: int

    @property
    def layer(self) -> int | None:
        """Layer number in the module path, None outside of layers."""
        found = _LAYER.search(self.site)
        return int(found.group(1)) if found else None

    @property
    def site_class(self) -> SiteClass:
        """Part of the layer, from the operation and the module path."""
        if self.operation == "head":
            return SiteClass.HEAD
        if self.operation == "attention":
            return SiteClass.ATTENTION
        parts = self.site.split(".")
        if parts[-1] in _QKV_NAMES:
            return SiteClass.QKV
        if any(name in part for part in parts for name in _MLP_PARTS) or self.operation == "expert":
            return SiteClass.MLP
        if any(name in part for part in parts for name in _ATTENTION_PARTS):
            return SiteClass.OUTPUT_PROJECTION
        if "embed" in parts[-1]:
            return SiteClass.EMBEDDING
        return SiteClass.HEAD if parts[-1] in ("lm_head", "output") else SiteClass.OTHER

    @property
    def feeds_only(self) -> str | None:
        """`query`, `key` or `value` for a projection that makes nothing else, None for all other sites."""
        last = self.site.split(".")[-1]
        for name, names in (("query", _QUERY_NAMES), ("key", _KEY_NAMES), ("value", _VALUE_NAMES)):
            if last in names:
                return name
        return None


class Plans:
    """Plans of one run by step; each stored plan is read once."""

    def __init__(self, index: TraceIndex) -> None:
        self._index = index
        self._read: dict[int, Mapping[str, PlanSite]] = {}

    @cached_property
    def _plan_numbers(self) -> tuple[int, ...]:
        return tuple(self._index.column("steps", "plan").tolist())

    def number(self, step: int) -> int:
        """Row of the step's plan in table `plans`."""
        return self._plan_numbers[step]

    def sites(self, step: int) -> Mapping[str, PlanSite]:
        """Target-model sites of a step by name, in execution order; a site called twice keeps its first
        call.
        """
        number = self.number(step)
        if number not in self._read:
            self._read[number] = self._read_plan(number)
        return self._read[number]

    def _read_plan(self, number: int) -> Mapping[str, PlanSite]:
        trace = self._index.trace
        start = int(trace.column("plans", "site_offset", number, number + 1)[0])
        stop = start + int(trace.column("plans", "site_count", number, number + 1)[0])
        names = ("site_string", "operation_string", "path_string", "decided_by_string", "model_string")
        strings = [trace.column("plan_sites", name, start, stop).tolist() for name in names]
        rows = trace.column("plan_sites", "rows", start, stop).tolist()
        sites: dict[str, PlanSite] = {}
        for site, operation, path, rule, model, count in zip(*strings, rows, strict=True):
            if self._text(model) == "draft":
                continue
            record = PlanSite(self._text(site), self._text(operation), self._text(path), self._text(rule), count)
            sites.setdefault(record.site, record)
        return sites

    @cached_property
    def _texts(self) -> dict[int, str]:
        return {}

    def _text(self, number: int) -> str:
        if number not in self._texts:
            self._texts[number] = self._index.trace.string(number)
        return self._texts[number]
