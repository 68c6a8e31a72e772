"""The one sentence of `divtrace blame`: what flipped, which batch made the state differ, how, and how long before."""

from __future__ import annotations

from collections.abc import Sequence

from divtrace.origin.records import BatchRecord, Crossing, Neighbour, Origin, OriginKind, OriginResult, SiteClass
from divtrace.render.text import counted, listed, logit, name, positions, quoted


def blame_sentence(result: OriginResult) -> str:
    """One sentence, whatever the walk found."""
    return f"{_what(result)}; {_why(result)}."


def _what(result: OriginResult) -> str:
    where = f"position {result.position} (output token {result.output_index})"
    request = name(result.request_a)
    if result.failed:
        return _failed(result, where)
    if not result.flipped:
        return f"request {request} keeps its tokens up to {where}, {quoted(result.token_a)} in both runs"
    found = result.divergence
    gap_a, gap_b = (found.gap_a, found.gap_b) if found else (None, None)
    logit_a, logit_b = (found.drifts[0].a, found.drifts[1].b) if found else (None, None)
    return (
        f"request {request} flips at {where}: A commits {quoted(result.token_a)}{_numbers(logit_a, gap_a)}, "
        f"B commits {quoted(result.token_b)}{_numbers(logit_b, gap_b)}"
    )


def _failed(result: OriginResult, where: str) -> str:
    """A run that could choose no token: who, where, and what the other run did there."""
    request = name(result.request_a)
    if len(result.failed) > 1:
        return f"request {request} ends with an error at {where} in both runs"
    run, other, token = ("A", "B", result.token_b) if "A" in result.failed else ("B", "A", result.token_a)
    return f"request {request} ends with an error at {where} in {run}, where {other} commits {quoted(token)}"


def _numbers(value: float | None, gap: float | None) -> str:
    return "" if value is None else f" [logit {logit(value)}, gap {logit(gap)}]"


def _why(result: OriginResult) -> str:
    if not result.origins:
        if result.missing:
            return f"the origin cannot be told from these traces: {result.missing[0]}"
        if result.differing_rows == 0 and not result.logits_differ:
            return "nothing that this decision read or computed differs"
        return "no record was found whose inputs are equal and whose output differs"
    origin = result.origins[0]
    more = len(result.origins) - 1
    others = f" (the first of {len(result.origins)} origins)" if more else ""
    return f"ORIGIN{others}: {_origin(origin, result)}"


def _origin(origin: Origin, result: OriginResult) -> str:
    if origin.kind is OriginKind.SELECTION:
        return (
            f"the selection itself, in step {origin.step_a} of A and {origin.step_b} of B: the token does not follow "
            "from the logits"
        )
    run, step, batch = described_side(origin)
    parts = [f"step {step} of {run} with a batch of {batch_words(batch)}, {origin_cause(origin)}"]
    if origin.tensor == "logits":
        parts.append("every KV row that the decision read is equal and its logits are not")
    else:
        of = "" if origin.request_a == result.request_a else f" of {name(origin.request_a)}"
        parts.append(f"the first KV rows that differ are layer {origin.layer}, {positions(origin.positions)}{of}")
    before = origin.steps_before_b if run == "B" else origin.steps_before_a
    what = "flip" if result.flipped else "decision"
    parts.append(
        f"this is the {what}'s own step" if before == 0 else f"that was {counted(before, 'step')} before the {what}"
    )
    gone = finished_words([n for n in result.neighbours if n.run == run and n.request in requests_of(batch)])
    return "; ".join(parts) + (f", by which {gone}" if gone else "")


def described_side(origin: Origin) -> tuple[str, int, BatchRecord]:
    """The run, step and batch in which the kernels left their usual path: the larger call's, else the larger
    batch's.
    """
    over = origin.crossings[0].over if origin.crossings else None
    if over is None:
        over = "A" if origin.batch_a.packed_rows > origin.batch_b.packed_rows else "B"
    return ("A", origin.step_a, origin.batch_a) if over == "A" else ("B", origin.step_b, origin.batch_b)


def origin_cause(origin: Origin) -> str:
    """Why this batch gave other bits, as far as the trace shows it."""
    if origin.kind is OriginKind.KERNEL_PATH and origin.crossings:
        return " and ".join(crossing_words(crossing) for crossing in _leading(origin.crossings))
    if origin.kind is OriginKind.SELECTOR_INPUT:
        first = origin.suspects[0]
        if first.changed == "place":
            rows = f"computed the row at place {origin.packed_row_a} of A's batch and {origin.packed_row_b} of B's"
        else:
            rows = f"ran over {first.rows_a} rows in A and {first.rows_b} in B"
        return f"where {name(first.site)} {rows}, both times on path {name(first.path_a)}"
    if origin.faults:
        fault = origin.faults[0]
        kind = {"changed": "changed after it was written"}.get(fault.kind, fault.kind)
        found = f"{name(fault.expected)} expected, {name(fault.found)} found"
        return f"where run {fault.run} read position {fault.position}: {kind}, {found}"
    return "where no recorded path or row count differs"


def crossing_words(crossing: Crossing) -> str:
    """`210 sites (qkv, mlp) took gemm instead of gemv: 124 rows over a threshold of 4, because ... joined`."""
    usual, taken = (crossing.path_a, crossing.path_b) if crossing.over == "B" else (crossing.path_b, crossing.path_a)
    rows = crossing.rows_b if crossing.over == "B" else crossing.rows_a
    classes = listed(site_class.value for site_class in crossing.site_classes)
    text = f"{counted(crossing.sites, 'site')} ({classes}) took {name(taken)} instead of {name(usual)}"
    limit = crossing.limit
    if limit is not None and rows > limit:
        text += f": {counted(rows, 'row')} over a threshold of {limit}"
    else:
        text += f": {counted(rows, 'row')}, decided by {name(crossing.rule)}"
    if crossing.joined:
        joined = listed(f"{name(s.request)}'s {s.kind} of {s.rows}" for s in crossing.joined)
        enough = limit is None or crossing.rows_without_joined <= limit < rows
        text += f", because {joined} joined" if enough else f", {joined} among them"
    return text


def batch_words(batch: BatchRecord) -> str:
    """`124 rows (anchor verify 4, follower prefill 120)`."""
    segments = listed((f"{name(s.request)} {s.kind} {s.rows}" for s in batch.segments), most=8)
    return f"{counted(batch.packed_rows, 'row')} ({segments})"


def finished_words(neighbours: Sequence[Neighbour]) -> str:
    """Who of the batch had ended before the decision."""
    gone = [n for n in neighbours if n.finished_before]
    if not gone:
        return ""
    return f"{listed(f'{name(n.request)} had already finished (step {n.finished_step})' for n in gone)}"


def requests_of(batch: BatchRecord) -> frozenset[str]:
    """Ids in a batch."""
    return frozenset(segment.request for segment in batch.segments)


def _leading(crossings: Sequence[Crossing]) -> tuple[Crossing, ...]:
    """The largest group of sites inside the layers and, where it crossed too, the output projection's."""
    inside = [c for c in crossings if SiteClass.HEAD not in c.site_classes]
    head = [c for c in crossings if SiteClass.HEAD in c.site_classes]
    return (*sorted(inside, key=lambda c: -c.sites)[:1], *head[:1])
