"""Where a run kept its K/V, in words: the store, its blocks, and how full it was. Must not know terminals."""

from __future__ import annotations

from divtrace.trace.reader import Trace


def run_memory(trace: Trace) -> str:
    """K/V memory of a whole run; empty where the trace says nothing about it."""
    settings = trace.header.settings
    store = settings.get("kv")
    total, used = (trace.column("steps", name) for name in ("blocks_total", "blocks_used"))
    blocks = int(total.max(initial=0))
    if not blocks:
        return f"{store}: an array of its own for each request, no blocks" if store == "contiguous" else ""
    size = settings.get("block_size")
    tokens = f" of {size} tokens" if isinstance(size, int) else ""
    cache = settings.get("prefix_cache")
    shared = f", prefix cache {'on' if cache else 'off'}" if isinstance(cache, bool) else ""
    return f"{store or 'paged'}: {blocks} blocks{tokens}, at most {int(used.max(initial=0))} in use{shared}"


def step_memory(trace: Trace, blocks_used: int, blocks_cached: int, blocks_total: int) -> str:
    """K/V memory after one step; empty where the trace says nothing about it."""
    store = trace.header.settings.get("kv")
    if not blocks_total:
        return "contiguous" if store == "contiguous" else ""
    cached = f", {blocks_cached} cached" if blocks_cached else ""
    return f"{store or 'paged'}, {blocks_used} of {blocks_total} blocks used{cached}"
