"""What a request is fed is what it is made of: its prompt, what was committed for it, what was proposed to it.

Must not know logits or K/V.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from divtrace.trace.checks.finding import Finding, where_wrong
from divtrace.trace.reader import Trace

Tokens = npt.NDArray[np.uint32]
_SEGMENT_COLUMNS = ("step", "request", "first_position", "rows", "proposed_tokens", "token_offset")


def check_inputs(trace: Trace) -> Iterator[Finding]:
    """Every input token stands in its request at that position, or is what the drafter proposed for it."""
    names = trace.request_ids()
    whole: dict[int, Tokens] = {}
    proposals = _proposals(trace)
    columns = (trace.column("segments", name).tolist() for name in _SEGMENT_COLUMNS)
    for step, request, first, rows, proposed, offset in zip(*columns, strict=True):
        place = f"step {step}, request {names[request]!r}"
        if proposed > rows:
            yield Finding(place, f"{proposed} of its {rows} input tokens are said to be proposals")
            continue
        if request not in whole:
            whole[request] = np.concatenate([trace.prompt(request), trace.output(request)])
        fed = trace.token_list(offset, rows)
        known = rows - proposed
        if fed[:known].tolist() != whole[request][first : first + known].tolist():
            yield Finding(place, "was fed other tokens than its prompt and the ones that were committed for it")
        if proposed and fed[known:].tolist() != proposals.get((step, request, first + known), [])[:proposed]:
            yield Finding(place, "verifies other tokens than its drafter proposed")


def check_places(trace: Trace) -> Iterator[Finding]:
    """Every row with logits is one that a segment wanted, and decides the position behind that row's."""
    rows, wanted = (trace.column("segments", name).astype(np.int64) for name in ("rows", "wanted_logits"))
    sampled_row = trace.column("sampled", "row")
    if (wanted > rows).any():
        return
    if wanted.sum() != len(sampled_row):
        yield Finding("sampled", f"holds {len(sampled_row)} rows, but the segments want {wanted.sum()}")
        return
    within = np.arange(wanted.sum()) - np.repeat(np.cumsum(wanted) - wanted, wanted)
    last_rows = np.repeat(rows - wanted, wanted) + within
    for column, of_segment, beyond in (("row", "first_row", 0), ("position", "first_position", 1), ("request", "", 0)):
        if of_segment:
            expected = np.repeat(trace.column("segments", of_segment).astype(np.int64), wanted) + last_rows + beyond
        else:
            expected = np.repeat(trace.column("segments", "request").astype(np.int64), wanted)
        yield from where_wrong(
            "sampled", trace.column("sampled", column) != expected, f"{column} is not one that a segment wants"
        )


def _proposals(trace: Trace) -> Mapping[tuple[int, int, int], list[int]]:
    columns = ("step", "request", "first_position", "proposed_offset", "proposed_count")
    return {
        (step, request, first): trace.token_list(offset, count).tolist()
        for step, request, first, offset, count in zip(
            *(trace.column("drafts", name).tolist() for name in columns), strict=True
        )
    }
