"""The answer of `divtrace diff` for a terminal: what differs first, per request, and how much was compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from divtrace.divergence.records import (
    DiffResult,
    DraftStatistics,
    Ending,
    GapBin,
    Outcome,
    RequestDiff,
    RunSummary,
)
from divtrace.render.parts import flip_words, heading, line, logits_table, top_logits
from divtrace.render.text import counted, listed, logit, name, quoted
from divtrace.trace.schema import HASH_VARIABLE

MOST_SETTINGS = 12
MOST_REQUESTS = 10


def render_diff(result: DiffResult) -> RenderableType:
    """One sentence, then inputs, each request that differs, and what was compared."""
    parts: list[RenderableType] = [Text(diff_sentence(result), style="bold"), Text()]
    parts.extend(_runs(result))
    parts.extend(_inputs(result))
    different = [request for request in result.requests if _differs(request)]
    for request in different[:MOST_REQUESTS]:
        parts.extend((Text(), *_request(request, result)))
    if len(different) > MOST_REQUESTS:
        parts.extend((Text(), Text(f"{len(different) - MOST_REQUESTS} more requests differ; --json lists them all.")))
    parts.extend((Text(), *_compared(result)))
    return Group(*parts)


def diff_sentence(result: DiffResult) -> str:
    """The whole answer in one sentence. Where nothing differs it says how much was looked at, and no more than that."""
    compared = f"{counted(result.compared.tokens, 'token')} of {counted(result.compared.requests, 'request')}"
    if result.outcome is Outcome.NONE_SEEN:
        return f"No difference seen in {compared}{_depth(result)}."
    if result.outcome is Outcome.NOTHING_COMPARED:
        return "Nothing could be compared: no request of these traces has a partner with tokens."
    if result.outcome is Outcome.STATE:
        first = next(r for r in result.requests if r.state_differs)
        return f"All {compared} are equal, but the state of {name(first.id_a)} is not: {_state(first)}."
    if result.outcome is Outcome.INPUTS:
        return _inputs_sentence(result)
    flipped = [r for r in result.requests if r.divergence is not None]
    if not flipped:
        apart = next(r for r in result.requests if r.ended_apart)
        return f"Request {name(apart.id_a)} ended at different lengths: {_endings(apart)}."
    first = min(flipped, key=lambda r: (r.divergence.step_b or 0) if r.divergence else 0)
    found = first.divergence
    assert found is not None
    return (
        f"{result.diverged_requests} of {counted(result.compared.requests, 'request')} diverged: {name(first.id_a)} at "
        f"position {found.position} (output token {found.output_index}), {quoted(found.token_a)} in A and "
        f"{quoted(found.token_b)} in B."
    )


def _inputs_sentence(result: DiffResult) -> str:
    for request in result.requests:
        if request.prompt_difference is not None:
            return (
                f"Inputs differ: the prompts of {name(request.id_a)} are not equal from position "
                f"{request.prompt_difference} on; record the same prompt twice."
            )
    return "Inputs differ: the runs used other weights, although every compared token is equal."


def _depth(result: DiffResult) -> str:
    seen = result.compared
    parts = []
    if seen.decisions_with_logits:
        parts.append(f"the logits of {counted(seen.decisions_with_logits, 'decision')}")
    if seen.kv_rows:
        parts.append(f"{counted(seen.kv_rows, 'KV row')} in {counted(seen.layers, 'layer')}")
    if not parts:
        return " (tokens only: the traces hold no logits or KV hashes)"
    return f", {' and '.join(parts)}{' (no KV rows: the hashes differ in kind)' if result.hashes_differ else ''}"


def _runs(result: DiffResult) -> Iterator[RenderableType]:
    for label, run in (("A", result.run_a), ("B", result.run_b)):
        yield line(label, _run(run))
    for label, ids in (("A", result.only_in_a), ("B", result.only_in_b)):
        if ids:
            yield line(f"only in {label}", listed(name(i) for i in ids))
    for group in result.ambiguous:
        yield line("ambiguous", f"{listed(name(i) for i in group)}: other ids, one prompt; not compared")


def _run(run: RunSummary) -> str:
    amounts = f"{counted(run.steps, 'step')}, {counted(run.requests, 'request')}"
    missing = f"; {run.unfinished.rstrip('.')}: later steps are missing" if run.unfinished else ""
    return f"{name(run.path)} (level {run.level}, {amounts}{missing})"


def _inputs(result: DiffResult) -> Iterator[RenderableType]:
    found = result.inputs
    prompts = sum(r.prompt_difference is not None for r in result.requests)
    words = {True: "equal", False: "DIFFERENT", None: "unknown"}
    prompt_words = f"differ in {counted(prompts, 'request')}" if prompts else "equal"
    weights, tokenizer = words[found.weights_equal], words[found.tokenizer_equal]
    yield line("inputs", f"prompts {prompt_words}, weights {weights}, tokenizer {tokenizer}")
    for difference in found.differences[:MOST_SETTINGS]:
        a, b = (name(value) if value is not None else "absent" for value in (difference.a, difference.b))
        yield line(difference.effect.value, f"{name(difference.path)}: {a} in A, {b} in B")
    if len(found.differences) > MOST_SETTINGS:
        yield line("", f"and {len(found.differences) - MOST_SETTINGS} more settings; --json lists them all")


def _differs(request: RequestDiff) -> bool:
    return (
        request.divergence is not None
        or request.prompt_difference is not None
        or request.state_differs
        or request.ended_apart
    )


def _request(request: RequestDiff, result: DiffResult) -> Iterator[RenderableType]:
    partner = "" if request.id_a == request.id_b else f" (B: {name(request.id_b)}, paired by prompt)"
    yield heading(f"Request {name(request.id_a)}{partner}")
    found = request.divergence
    if found is not None:
        yield line("token", f"position {found.position} (output token {found.output_index})")
        for run, token, step, gap, top in (
            ("A", found.token_a, found.step_a, found.gap_a, found.top_a),
            ("B", found.token_b, found.step_b, found.gap_b, found.top_b),
        ):
            where = f" in step {step}" if step is not None else ""
            yield line(f"  {run}", f"{quoted(token)}{where}, gap {logit(gap)}")
            if top:
                yield line("", f"top: {top_logits(top)}")
        yield logits_table(found)
        yield line("flip", flip_words(found.flip))
    elif request.ended_apart:
        yield line("length", _endings(request))
    yield from _first_state(request, result)
    if request.drafts_a.steps or request.drafts_b.steps:
        yield line("drafts", f"{_drafts(request.drafts_a)} in A, {_drafts(request.drafts_b)} in B")


def _first_state(request: RequestDiff, result: DiffResult) -> Iterator[RenderableType]:
    logits = request.first_logits_difference
    if logits is not None:
        yield line(
            "logits", f"first differ at position {logits.position} (step {logits.step_a} of A, {logits.step_b} of B)"
        )
    row = request.first_row_difference
    if row is not None:
        tensor = "K and V" if row.tensor == "both" else row.tensor
        yield line(
            "KV row",
            f"first differs at position {row.position}, layer {row.layer}, {tensor} (step {row.step_a} of A, "
            f"{row.step_b} of B); {request.differing_kv_rows:,} of {request.kv_rows:,} compared rows differ",
        )
    elif result.compared.layers and request.kv_rows:
        yield line("KV rows", f"all {request.kv_rows:,} compared are equal")
    if request.unmatched_kv_rows:
        yield line("unmatched", f"{counted(request.unmatched_kv_rows, 'KV row')} read in one run only")


def _state(request: RequestDiff) -> str:
    row, logits = request.first_row_difference, request.first_logits_difference
    if row is not None:
        return f"KV rows first differ at position {row.position}, layer {row.layer}"
    return f"logits first differ at position {logits.position}" if logits else "no difference"


def _endings(request: RequestDiff) -> str:
    return " and ".join(_ending(end, run) for end, run in ((request.ending_a, "A"), (request.ending_b, "B")))


def _ending(ending: Ending, run: str) -> str:
    step = f" in step {ending.step}" if ending.step is not None else ""
    return f"{counted(ending.output_tokens, 'token')} in {run} ({name(ending.reason)}{step})"


def _drafts(drafts: DraftStatistics) -> str:
    if not drafts.proposed_tokens:
        return "none"
    return f"{drafts.accepted_tokens}/{drafts.proposed_tokens} accepted ({drafts.acceptance:.1%})"


def _compared(result: DiffResult) -> Iterator[RenderableType]:
    seen = result.compared
    amounts = f"{counted(seen.tokens, 'token')} of {counted(seen.requests, 'request')}{_depth(result)}"
    yield line("compared", amounts)
    if result.hashes_differ:
        yield line("KV rows", f"not compared: {_hashes(result)}")
    flips = sorted(r.divergence.output_index for r in result.requests if r.divergence is not None)
    if len(flips) > 1:
        middle = flips[len(flips) // 2]
        yield line("flips at", f"output tokens {flips[0]} (first), {middle} (median), {flips[-1]} (last)")
    if result.gaps:
        yield line("near ties", _gaps(result.gaps))


def _hashes(result: DiffResult) -> str:
    hash_a, hash_b = name(result.run_a.kv_hash), name(result.run_b.kv_hash)
    return f"A is hashed with {hash_a} and B with {hash_b}; record both with {HASH_VARIABLE}={hash_a}."


def _gaps(bins: Sequence[GapBin]) -> str:
    total = sum(b.decisions for b in bins)
    near = sum(b.decisions for b in bins if b.limit is not None and b.limit <= 0.01)
    parts = [f"{'rest' if b.limit is None else '0' if b.limit == 0 else f'≤{b.limit:g}'}: {b.decisions}" for b in bins]
    share = near / total if total else 0.0
    return f"{near} of {total} decisions of A ({share:.1%}) have a gap of at most 0.01 ({', '.join(parts)})"
