"""The paths that a recorded run took and that its settings alone do not give: a tuned table, a pinned kernel.

A playback follows the plan of the trace, because that is what was computed.
"""

from __future__ import annotations

from collections import defaultdict

from divtrace.trace.reader import Trace
from engine.kernels.policy import KernelPolicy, SiteOverride


def recorded_overrides(trace: Trace, policy: KernelPolicy) -> tuple[SiteOverride, ...]:
    """One override per (step, site) whose recorded path is not the one that `policy` chooses; usually none."""
    steps_of_plan: dict[int, list[int]] = defaultdict(list)
    for step, plan in enumerate(trace.column("steps", "plan").tolist()):
        steps_of_plan[plan].append(step)
    return tuple(
        SiteOverride(step, site, path)
        for plan, steps in steps_of_plan.items()
        for site, path in _other_paths(trace, plan, policy)
        for step in steps
    )


def _other_paths(trace: Trace, plan: int, policy: KernelPolicy) -> list[tuple[str, str]]:
    start = int(trace.column("plans", "site_offset", plan, plan + 1)[0])
    stop = start + int(trace.column("plans", "site_count", plan, plan + 1)[0])
    names = ("site_string", "operation_string", "path_string", "model_string")
    strings = zip(*(trace.column("plan_sites", name, start, stop).tolist() for name in names), strict=True)
    rows = trace.column("plan_sites", "rows", start, stop).tolist()
    found = []
    for numbers, count in zip(strings, rows, strict=True):
        site, operation, path, model = map(trace.string, numbers)
        is_attention = operation == "attention"
        chosen, _ = policy.attention_path(0, site) if is_attention else policy.linear_path(0, site, count)
        if model != "draft" and path != chosen:
            found.append((site, path))
    return found
