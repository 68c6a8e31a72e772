"""Two traces compared: `diff_traces` is what `divtrace diff` calls."""

from __future__ import annotations

from collections.abc import Sequence

from divtrace.align.index import TraceIndex
from divtrace.align.runs import RunPair
from divtrace.divergence.inputs import compare_inputs
from divtrace.divergence.records import (
    Compared,
    DiffResult,
    GapBin,
    InputComparison,
    Outcome,
    RequestDiff,
    RunSummary,
)
from divtrace.divergence.requests import diff_request
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level


def diff_traces(a: Trace, b: Trace, request: str | None = None) -> DiffResult:
    """Compare two open traces, or one request of them.

    Raises:
        DivtraceError: `request` is not in both runs.
        TraceError: a trace is damaged.
    """
    return diff_runs(RunPair(a, b), request)


def diff_runs(runs: RunPair, request: str | None = None) -> DiffResult:
    """The same over runs whose indexes are already made."""
    pairing = runs.pairing
    pairs = pairing.pairs if request is None else (pairing.find(request),)
    inputs = compare_inputs(runs, pairs)
    requests = tuple(diff_request(runs, pair) for pair in pairs)
    return DiffResult(
        run_a=_summary(runs.a),
        run_b=_summary(runs.b),
        outcome=_outcome(requests, inputs),
        compared=Compared(
            requests=sum(r.compared_tokens > 0 or r.kv_rows > 0 for r in requests),
            tokens=sum(r.compared_tokens for r in requests),
            decisions_with_logits=sum(r.decisions_with_logits for r in requests),
            kv_rows=sum(r.kv_rows for r in requests),
            layers=runs.a.layers if runs.can_compare_rows else 0,
        ),
        inputs=inputs,
        requests=requests,
        only_in_a=pairing.only_in_a if request is None else (),
        only_in_b=pairing.only_in_b if request is None else (),
        ambiguous=tuple(group.ids_a + group.ids_b for group in pairing.ambiguous) if request is None else (),
        diverged_requests=sum(r.divergence is not None for r in requests),
        gaps=_sum_bins([r.gaps for r in requests if r.gaps]),
    )


def _outcome(requests: Sequence[RequestDiff], inputs: InputComparison) -> Outcome:
    if any(r.divergence is not None or r.ended_apart for r in requests):
        return Outcome.TOKENS
    if any(r.prompt_difference is not None for r in requests):
        return Outcome.INPUTS
    if any(r.state_differs for r in requests):
        return Outcome.STATE
    if not any(r.compared_tokens or r.kv_rows for r in requests):
        return Outcome.NOTHING_COMPARED
    return Outcome.INPUTS if inputs.weights_equal is False else Outcome.NONE_SEEN


def _summary(index: TraceIndex) -> RunSummary:
    trace = index.trace
    return RunSummary(
        name=index.name,
        path=str(trace.path),
        level=str(trace.header.level),
        steps=trace.step_count,
        requests=len(index.request_ids),
        clean_end=trace.clean_end,
        unfinished="" if trace.is_complete else trace.ending(),
        kv_hash=trace.header.hash_name if index.has(Level.KV) else "",
    )


def _sum_bins(groups: Sequence[tuple[GapBin, ...]]) -> tuple[GapBin, ...]:
    if not groups:
        return ()
    return tuple(
        GapBin(bins[0].limit, sum(gap_bin.decisions for gap_bin in bins)) for bins in zip(*groups, strict=True)
    )
