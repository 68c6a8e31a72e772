"""Proposes T for `tile:T` from what the probe found. Must not run anything."""

from __future__ import annotations

from divtrace.probing.result import Findings, TileProposal

SMALLEST_TILE = 2


def propose_tile(findings: Findings) -> TileProposal:
    """Row counts from 2 on where the index and the company of a row do not show; the fastest of them per row.

    It holds for the case's own number of threads: calls of T rows may differ from one number of threads to another.
    """
    refused = {*findings.index_dependent, *findings.neighbour_dependent, *findings.unrepeatable}
    candidates = tuple(count for count in findings.row_counts if count >= SMALLEST_TILE and count not in refused)
    best = min(candidates, key=lambda count: findings.time_s[count] / count, default=None)
    return TileProposal(findings.operation, findings.implementation, findings.shape, findings.threads, candidates, best)
