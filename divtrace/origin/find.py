"""From a decision to its origins: `find_origins` is what `divtrace blame` builds on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from divtrace.align.index import Integers
from divtrace.align.pairing import RequestPair
from divtrace.align.runs import RunPair
from divtrace.align.timeline import Timeline
from divtrace.divergence.compare import diff_runs
from divtrace.divergence.logits import token_of
from divtrace.divergence.records import RequestDiff
from divtrace.divergence.requests import diff_request
from divtrace.errors import DivtraceError
from divtrace.origin.batches import find_neighbours
from divtrace.origin.candidates import Decided, find_candidates
from divtrace.origin.choices import choice_faults
from divtrace.origin.faults import FaultFinder
from divtrace.origin.finite import logits_not_finite
from divtrace.origin.groups import OriginMaker, position_ranges
from divtrace.origin.records import Carriers, ChoiceFault, InputFault, Origin, OriginResult
from divtrace.origin.walk import Reader, Walk, walk_back
from divtrace.trace.reader import Trace
from divtrace.trace.schema import HASH_VARIABLE, Level


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision to explain: its position, and step, record (row of table `sampled`) and token in each run.

    A failure says why a run could choose no token; what stands for its token was not committed.
    """

    position: int
    step_a: int
    step_b: int
    record_a: int
    record_b: int
    token_a: int
    token_b: int
    failure_a: str = ""
    failure_b: str = ""

    @property
    def failed_apart(self) -> bool:
        """True when one run could choose a token here, and the other could not."""
        return bool(self.failure_a) != bool(self.failure_b)


def find_origins(a: Trace, b: Trace, request: str | None = None, position: int | None = None) -> OriginResult:
    """Walk back from the decision at `position` of `request`.

    Without a request: the one whose tokens diverge first in run B's execution, else the first that failed in
    one run, else the first whose state differs. Without a position: the divergence, else the last decision
    from equal tokens (one at which no token was possible is such a decision).

    Raises: DivtraceError: no such request or position, or there is nothing to explain; the message says
    what to do. TraceError: a trace is damaged.
    """
    return find_origins_of(RunPair(a, b), request, position)


def find_origins_of(runs: RunPair, request: str | None = None, position: int | None = None) -> OriginResult:
    """The same over runs whose indexes are already made."""
    pair = _first_differing(runs) if request is None else runs.pairing.find(request)
    timeline = runs.timeline(pair)
    if timeline.prompt_difference is not None:
        raise DivtraceError(
            f"the prompts of request {pair.id_a!r} differ from position {timeline.prompt_difference} on: inputs "
            "differ, so there is no batch to blame; record both runs with the same prompt."
        )
    decision = _decision(runs, timeline, position)
    compared = diff_request(runs, pair)
    faults = FaultFinder(runs, timeline.tokens_a[: decision.position])
    maker = OriginMaker(runs, faults, (decision.step_a, decision.step_b), (pair.number_a, pair.number_b))
    walk = _walk(runs, pair, decision, faults)
    flipped = decision.position == timeline.divergence
    choices = _choice_faults(runs, pair, decision) if flipped else ()
    origins = _origins(runs, pair, decision, compared, walk, maker, choices)
    read_a, read_b = _records_to_blame(runs, pair, decision, walk)
    own = pair.id_a, pair.id_b
    decided = decision.step_a, decision.step_b
    batches = [(run, batch) for o in origins for run, batch in (("A", o.batch_a), ("B", o.batch_b))]
    return OriginResult(
        run_a=runs.a.name,
        run_b=runs.b.name,
        request_a=pair.id_a,
        request_b=pair.id_b,
        position=decision.position,
        output_index=decision.position - timeline.prompt_tokens,
        token_a=token_of(runs.a, decision.token_a),
        token_b=token_of(runs.b, decision.token_b),
        flipped=flipped,
        logits_differ=_hashes_differ(runs, decision),
        step_a=decision.step_a,
        step_b=decision.step_b,
        divergence=compared.divergence if decision.position == timeline.divergence else None,
        ending_a=compared.ending_a,
        ending_b=compared.ending_b,
        rows_read=walk.rows_read if walk else 0,
        differing_rows=int(walk.read.positions.size) if walk else 0,
        origins=origins,
        carriers=_carriers(walk),
        neighbours=find_neighbours(batches, own, decided),
        candidates=find_candidates(
            runs,
            maker.sites,
            read_a,
            read_b,
            origins,
            Decided(pair.number_a, decision.step_a, pair.number_b, decision.step_b),
        ),
        faults=_all_faults(faults, pair, decision),
        choice_faults=choices,
        missing=_missing(runs),
        failure_a=decision.failure_a,
        failure_b=decision.failure_b,
    )


def _first_differing(runs: RunPair) -> RequestPair:
    """The request to explain when the user names none."""
    requests = diff_runs(runs).requests
    flipped = [r for r in requests if r.divergence is not None]
    different: list[RequestDiff] = sorted(flipped, key=_flip_step) or [r for r in requests if r.failed_apart]
    different = different or [r for r in requests if r.state_differs]
    if not different:
        compared = sum(r.compared_tokens for r in requests)
        raise DivtraceError(
            f"nothing to explain: no difference seen in {compared} tokens of {len(requests)} requests; "
            "run divtrace diff for what was compared."
        )
    return runs.pairing.find(different[0].id_a)


def _flip_step(request: RequestDiff) -> tuple[int, str]:
    found = request.divergence
    return (found.step_b or 0 if found else 0, request.id_a)


def _decision(runs: RunPair, timeline: Timeline, position: int | None) -> Decision:
    decided = runs.decisions(timeline)
    name = timeline.pair.id_a
    if decided.positions.size == 0:
        raise DivtraceError(
            f"request {name!r} has no decision that both runs made from equal tokens; record both runs for longer."
        )
    if position is None:
        position = timeline.divergence if timeline.divergence is not None else int(decided.positions[-1])
    places = np.flatnonzero(decided.positions == position)
    if places.size == 0:
        first, last = int(decided.positions[0]), int(decided.positions[-1])
        raise DivtraceError(
            f"position {position} of request {name!r} was not decided from equal tokens in both runs; "
            f"use one from {first} to {last}."
        )
    at = int(places[0])
    failures = [
        index.failure(number) if position == tokens.size else ""
        for index, number, tokens in (
            (runs.a, timeline.pair.number_a, timeline.tokens_a),
            (runs.b, timeline.pair.number_b, timeline.tokens_b),
        )
    ]
    return Decision(
        position,
        int(decided.steps_a[at]),
        int(decided.steps_b[at]),
        int(decided.records_a[at]),
        int(decided.records_b[at]),
        _token_at(timeline.tokens_a, position, int(decided.chosen_a[at])),
        _token_at(timeline.tokens_b, position, int(decided.chosen_b[at])),
        *failures,
    )


def _token_at(tokens: Integers, position: int, chosen: int) -> int:
    """The token that a run committed at a position, or what its failed decision chose there."""
    return int(tokens[position]) if position < tokens.size else chosen


def _walk(runs: RunPair, pair: RequestPair, decision: Decision, faults: FaultFinder) -> Walk | None:
    if not runs.can_compare_rows:
        return None
    start = Reader(pair.number_a, decision.step_a, pair.number_b, decision.step_b, decision.position)
    return walk_back(runs, start, faults)


def _origins(
    runs: RunPair,
    pair: RequestPair,
    decision: Decision,
    compared: RequestDiff,
    walk: Walk | None,
    maker: OriginMaker,
    choices: tuple[ChoiceFault, ...],
) -> tuple[Origin, ...]:
    """Origins among KV rows, then the decision itself where its inputs are equal or its choice
    contradicts its logits.
    """
    found = maker.from_rows(walk.origins) if walk else ()
    at = pair.number_a, pair.number_b, decision.position
    logits_differ = _hashes_differ(runs, decision)
    flipped = compared.divergence if decision.position == _divergent_position(compared) else None
    rows_equal = walk is not None and walk.read.positions.size == 0
    if rows_equal and logits_differ:
        not_finite = logits_not_finite(runs, decision.record_a, decision.record_b)
        found = (*found, maker.from_decision(*at, "logits", not_finite))
    unexplained = flipped is not None and flipped.flip.explained is False
    selection_only = logits_differ is False or unexplained or bool(choices)
    if (flipped is not None or decision.failed_apart) and selection_only:
        found = (*found, maker.from_decision(*at, "token"))
    return found


def _choice_faults(runs: RunPair, pair: RequestPair, decision: Decision) -> tuple[ChoiceFault, ...]:
    """Where the flipped decision contradicts its own run's logits or settings."""
    sides = (("A", runs.a, pair.number_a, decision.record_a), ("B", runs.b, pair.number_b, decision.record_b))
    return tuple(
        ChoiceFault(name, reason)
        for name, index, request, record in sides
        for reason in choice_faults(index, request, decision.position, record)
    )


def _divergent_position(compared: RequestDiff) -> int | None:
    return compared.divergence.position if compared.divergence else None


def _hashes_differ(runs: RunPair, decision: Decision) -> bool | None:
    """Whether the decision's raw logits differ; None below level logits."""
    if not runs.both_have(Level.LOGITS):
        return None
    return bool(runs.a.logits_hashes[decision.record_a] != runs.b.logits_hashes[decision.record_b])


def _records_to_blame(
    runs: RunPair, pair: RequestPair, decision: Decision, walk: Walk | None
) -> tuple[Integers, Integers]:
    """Rows whose producers may be candidates: those that differ, or all that were read where hashes are
    missing.
    """
    if walk is not None:
        return walk.read.records_a, walk.read.records_b
    a = runs.memory_a.seen_by(pair.number_a, decision.position, decision.step_a)
    b = runs.memory_b.seen_by(pair.number_b, decision.position, decision.step_b)
    both = a.known & b.known
    return a.records[both], b.records[both]


def _carriers(walk: Walk | None) -> Carriers:
    if walk is None:
        return Carriers(0, ())
    made = set(zip(walk.origins.records_a.tolist(), walk.origins.records_b.tolist(), strict=True))
    pairs = zip(walk.read.records_a.tolist(), walk.read.records_b.tolist(), strict=True)
    carrying = walk.read.positions[np.array([pair not in made for pair in pairs], bool)]
    return Carriers(int(carrying.size), position_ranges(carrying))


def _all_faults(faults: FaultFinder, pair: RequestPair, decision: Decision) -> tuple[InputFault, ...]:
    return (
        *faults.found,
        *faults.all_changes("A", pair.number_a, decision.step_a),
        *faults.all_changes("B", pair.number_b, decision.step_b),
    )


def _missing(runs: RunPair) -> tuple[str, ...]:
    """What these traces lack, and what to record."""
    found = []
    for name, index in (("A", runs.a), ("B", runs.b)):
        if not index.has(Level.KV):
            level = index.trace.header.level
            found.append(f"run {name} has level {level}: no hashes of KV rows; record it with --level kv")
    if runs.both_have(Level.KV) and not runs.same_layers:
        found.append("the runs have models of different depth: their KV rows cannot be compared")
    if runs.both_have(Level.KV) and not runs.same_hash:
        name_a, name_b = (index.trace.header.hash_name for index in (runs.a, runs.b))
        found.append(
            f"KV rows of run A are hashed with {name_a}, of run B with {name_b}; record both with "
            f"{HASH_VARIABLE}={name_a}"
        )
    return tuple(found)
