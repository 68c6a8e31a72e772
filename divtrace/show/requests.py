"""What became of every request of a run. Data only; no terminal."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from divtrace.align.index import TraceIndex
from divtrace.show.safe_text import decoded
from divtrace.trace.reader import Trace

_TEXT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class RequestView:
    """One request. Steps are None where it did not come that far; texts hold the first 64 tokens at most."""

    id: str
    prompt_tokens: int
    output_tokens: int
    submitted_step: int
    first_step: int | None
    first_token_step: int | None
    ended_step: int | None
    ended: str
    cached_tokens: int
    preemptions: int
    proposed_tokens: int
    accepted_tokens: int
    prompt_text: str
    output_text: str


@dataclass(frozen=True, slots=True)
class _Tallies:
    """Per request number: first step with a segment, tokens from the prefix cache, drafts, preemptions."""

    first_steps: Mapping[int, int]
    cached: Mapping[int, int]
    proposed: Mapping[int, int]
    accepted: Mapping[int, int]
    preemptions: Mapping[int, int]


def view_requests(trace: Trace) -> tuple[RequestView, ...]:
    """All requests in submission order."""
    index = TraceIndex(trace)
    tallies = _tallies(index)
    submitted = index.column("requests", "submitted_step").tolist()
    return tuple(_view(index, tallies, number, submitted[number]) for number in range(len(index.request_ids)))


def text_of(trace: Trace, tokens: list[int]) -> str:
    """Text of token ids, as far as the trace holds it."""
    return decoded(b"".join(trace.token_text(token) for token in tokens))


def _view(index: TraceIndex, tallies: _Tallies, number: int, submitted_step: int) -> RequestView:
    trace = index.trace
    prompt = trace.prompt(number)
    decided = index.decisions(number)
    ended_step, reason = index.finished_steps.get(number, (None, "unfinished"))
    return RequestView(
        id=index.request_ids[number],
        prompt_tokens=len(prompt),
        output_tokens=len(decided.chosen),
        submitted_step=submitted_step,
        first_step=tallies.first_steps.get(number),
        first_token_step=int(decided.steps[0]) if decided.steps.size else None,
        ended_step=ended_step,
        ended=reason,
        cached_tokens=tallies.cached.get(number, 0),
        preemptions=tallies.preemptions.get(number, 0),
        proposed_tokens=tallies.proposed.get(number, 0),
        accepted_tokens=tallies.accepted.get(number, 0),
        prompt_text=text_of(trace, prompt[:_TEXT_TOKENS].tolist()),
        output_text=text_of(trace, decided.chosen[:_TEXT_TOKENS].tolist()),
    )


def _tallies(index: TraceIndex) -> _Tallies:
    first_steps: dict[int, int] = {}
    cached: dict[int, int] = {}
    columns = (index.column("segments", name).tolist() for name in ("request", "step", "cached_tokens"))
    for request, step, cached_tokens in zip(*columns, strict=True):
        first_steps.setdefault(request, step)
        cached[request] = max(cached.get(request, 0), cached_tokens)
    proposed: dict[int, int] = defaultdict(int)
    accepted: dict[int, int] = defaultdict(int)
    drafts = (index.column("drafts", name).tolist() for name in ("request", "proposed_count", "accepted_tokens"))
    for request, proposed_tokens, accepted_tokens in zip(*drafts, strict=True):
        proposed[request] += proposed_tokens
        accepted[request] += accepted_tokens
    events = zip(
        index.column("events", "request").tolist(), index.column("events", "kind_string").tolist(), strict=True
    )
    preempted = Counter(request for request, kind in events if index.trace.string(kind) == "preempted")
    return _Tallies(first_steps, cached, proposed, accepted, preempted)
