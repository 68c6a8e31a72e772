"""Proposes T for `tile:T` from what the probe found. Must not run anything."""

from __future__ import annotations

from collections.abc import Sequence

from divtrace.probing.result import Findings, TileProposal

SMALLEST_TILE = 2
TILED_IMPLEMENTATION = "numpy gemm"
"""What `tile:T` calls on a CPU."""


def propose_tile(findings: Findings) -> TileProposal:
    """Row counts from 2 on where the index and the company of a row do not show; the fastest of them per row.

    It holds for the case's own number of threads: calls of T rows may differ from one number of threads to another.
    """
    refused = {*findings.index_dependent, *findings.neighbour_dependent, *findings.unrepeatable}
    candidates = tuple(count for count in findings.row_counts if count >= SMALLEST_TILE and count not in refused)
    best = min(candidates, key=lambda count: findings.time_s[count] / count, default=None)
    return TileProposal(findings.operation, findings.implementation, findings.shape, findings.threads, candidates, best)


def propose_for_all(findings: Sequence[Findings]) -> int | None:
    """The size that holds in every one of these cases and is the fastest per row over all; None when there is none.

    With cases of several numbers of threads it holds on each of them, and its bits may still differ between them.
    """
    held = [set(propose_tile(found).candidates) for found in findings]
    common = sorted(set.intersection(*held)) if held else []
    return min(common, key=lambda count: sum(found.time_s[count] for found in findings) / count, default=None)
