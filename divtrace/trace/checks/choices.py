"""Committed tokens must follow from the recorded logits. Must not know K/V or batches."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from divtrace.errors import TraceError
from divtrace.trace.checks.finding import Finding, where_wrong
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level

SUM_TOLERANCE = 1e-3
"""A log-sum-exp of float32 exponentials may be off by so much of its size."""


def check_choices(trace: Trace) -> Iterator[Finding]:
    """Greedy requests draw no random numbers and take the largest processed logit, lowest id on a tie."""
    greedy = _greedy_requests(trace)[trace.column("sampled", "request")]
    drew = ~np.isnan(trace.column("sampled", "random_number"))
    yield from where_wrong("sampled", greedy & drew, "drew a random number although its request is greedy")
    if not trace.header.level.includes(Level.LOGITS):
        return
    values = trace.column("sampled", "processed_top_values")
    chosen = trace.column("sampled", "chosen")
    if values.shape[1]:
        largest = trace.column("sampled", "processed_top_ids")[:, 0]
        wrong = greedy & (chosen != largest) & ~np.isnan(values[:, 0])
        yield from where_wrong(
            "sampled", wrong, "chose another token than the largest logit, and its request is greedy"
        )
        yield from _check_logits(trace, chosen, values)
    for ids, logits in (("top_ids", "top_values"), ("processed_top_ids", "processed_top_values")):
        yield from _check_order(trace, ids, logits)


def _check_logits(trace: Trace, chosen: npt.NDArray[np.uint32], values: npt.NDArray[np.float32]) -> Iterator[Finding]:
    """The chosen token's logit, the gap and the log-sum-exp are those of the recorded logits."""
    logit = trace.column("sampled", "chosen_logit")
    is_chosen = trace.column("sampled", "processed_top_ids") == chosen[:, np.newaxis]
    differs = (is_chosen & _differ(values, logit[:, np.newaxis])).any(axis=1)
    too_large = ~is_chosen.any(axis=1) & (logit > values[:, -1])
    yield from where_wrong("sampled", differs | too_large, "chosen_logit is not the logit of the chosen token")
    if values.shape[1] > 1:
        with np.errstate(invalid="ignore"):
            gaps = values[:, 0] - values[:, 1]
        wrong = _differ(trace.column("sampled", "gap"), gaps)
        yield from where_wrong("sampled", wrong, "gap is not the distance of its two largest logits")
    yield from where_wrong("sampled", _wrong_sums(trace), "log_sum_exp cannot be that of its logits")


def _wrong_sums(trace: Trace) -> npt.NDArray[np.bool_]:
    """At least the sum of the recorded exponentials, at most as if all others were as large as the last of these."""
    top = trace.column("sampled", "top_values").astype(np.float64)
    sums = trace.column("sampled", "log_sum_exp")
    others = max(trace.header.vocabulary_size - top.shape[1], 0)
    with np.errstate(all="ignore"):
        recorded = np.exp(top - top[:, :1]).sum(axis=1)
        least = top[:, 0] + np.log(recorded)
        most = top[:, 0] + np.log(recorded + others * np.exp(top[:, -1] - top[:, 0]))
        slack = SUM_TOLERANCE * (1 + np.abs(sums))
        return np.isfinite(top).all(axis=1) & ~((sums >= least - slack) & (sums <= most + slack))


def check_commits(trace: Trace) -> Iterator[Finding]:
    """In a recording of a workload a request goes on with what was chosen; a playback's tokens are pinned."""
    if trace.header.workload is None:
        return
    committed = trace.column("sampled", "committed") == 1
    wrong = committed & (trace.committed_tokens() != trace.column("sampled", "chosen"))
    yield from where_wrong("sampled", wrong, "committed another token than the one that was chosen")


def check_outputs(trace: Trace) -> Iterator[Finding]:
    """What a request is said to have returned is what was committed for it, position by position."""
    names = trace.request_ids()
    requests = trace.column("completions", "request").tolist()
    offsets = trace.column("completions", "output_offset").tolist()
    counts = trace.column("completions", "output_count").tolist()
    for request, offset, count in zip(requests, offsets, counts, strict=True):
        place = f"request {names[request]!r}"
        try:
            committed = trace.output(request)
        except TraceError:
            yield Finding(place, "its committed positions have gaps or repeat")
            continue
        if committed.tolist() != trace.token_list(offset, count).tolist():
            yield Finding(place, "the tokens it returned are not the ones that were committed")


def check_failures(trace: Trace) -> Iterator[Finding]:
    """A request that ended with reason `error` shows the decision that was impossible: behind its last token."""
    names = trace.request_ids()
    columns = (trace.column("sampled", name).tolist() for name in ("step", "request", "position", "committed"))
    uncommitted = {(step, owner, at) for step, owner, at, committed in zip(*columns, strict=True) if not committed}
    ends = (trace.column("completions", name).tolist() for name in ("step", "request", "output_count", "reason_string"))
    for step, request, count, reason in zip(*ends, strict=True):
        failed_at = (step, request, len(trace.prompt(request)) + count)
        if trace.string(reason) == "error" and failed_at not in uncommitted:
            place = f"step {step}, request {names[request]!r}"
            yield Finding(place, "ended with an error, but no impossible decision stands behind its last token")


def check_drafts(trace: Trace) -> Iterator[Finding]:
    """The proposals that count as accepted are the tokens that were committed in their places."""
    names = trace.request_ids()
    columns = ("step", "request", "first_position", "proposed_offset", "proposed_count", "accepted_tokens")
    for step, request, first, offset, count, accepted in zip(
        *(trace.column("drafts", name).tolist() for name in columns), strict=True
    ):
        place = f"step {step}, request {names[request]!r}"
        if accepted > count:
            yield Finding(place, f"accepted {accepted} of {count} draft tokens")
            continue
        start = first - len(trace.prompt(request))
        committed = trace.output(request)[max(start, 0) : max(start, 0) + accepted]
        if committed.tolist() != trace.token_list(offset, accepted).tolist():
            yield Finding(place, "the draft tokens that it accepted are not the ones that were committed")


def _greedy_requests(trace: Trace) -> npt.NDArray[np.bool_]:
    settings = [trace.string(index) for index in trace.column("requests", "settings_string")]
    return np.array([_is_greedy(text) for text in settings], np.bool_)


def _is_greedy(settings: str) -> bool:
    try:
        return bool(json.loads(settings)["sampling"]["temperature"] == 0)
    except (ValueError, KeyError, TypeError, RecursionError):
        return False


def _check_order(trace: Trace, ids: str, logits: str) -> Iterator[Finding]:
    values = trace.column("sampled", logits)
    numbers = trace.column("sampled", ids)
    yield from where_wrong("sampled", (numbers >= trace.header.vocabulary_size).any(axis=1), f"{ids}: no such token")
    falls = values[:, :-1] > values[:, 1:]
    ties = (values[:, :-1] == values[:, 1:]) & (numbers[:, :-1] < numbers[:, 1:])
    unknown = np.isnan(values[:, :-1]) | np.isnan(values[:, 1:])
    unordered = ~(falls | ties | unknown)
    yield from where_wrong(
        "sampled", unordered.any(axis=1), f"{logits} are not in order, largest first and lowest id first on a tie"
    )


def _differ(left: npt.NDArray[np.float32], right: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    return (left != right) & ~(np.isnan(left) & np.isnan(right))
