"""One paired request in two runs, by position: where tokens agree, which decisions and which KV rows
answer each other.

Positions below `Timeline.end` have equal input tokens in both runs, so everything computed there should
be equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.align.history import MemoryEvents, MemoryHistory
from divtrace.align.index import Integers, TraceIndex
from divtrace.align.pairing import RequestPair

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Timeline:
    """Tokens of one pair. `tokens_a` and `tokens_b` hold prompt and output, shape (length,), int64.

    `divergence` is the first position at which the runs committed different tokens, None where none was seen;
    `prompt_difference` is the first differing position of the prompts, and then nothing past it is compared.
    `end` is one past the last position whose input token is equal in both.
    """

    pair: RequestPair
    prompt_tokens: int
    tokens_a: Integers
    tokens_b: Integers
    prompt_difference: int | None
    divergence: int | None
    end: int

    @property
    def decisions_end(self) -> int:
        """One past the last position whose decision had equal input tokens: the divergence itself is
        included.
        """
        return self.end + 1 if self.divergence is not None else self.end


@dataclass(frozen=True, slots=True)
class DecisionPairs:
    """Decisions of both runs at the same positions with equal input tokens; arrays of shape (decisions,),
    int64.
    """

    positions: Integers
    steps_a: Integers
    steps_b: Integers
    records_a: Integers
    records_b: Integers
    chosen_a: Integers
    chosen_b: Integers


@dataclass(frozen=True, slots=True)
class RowPairs:
    """KV rows that answered each other: what the decisions at `read_from` and later read at `positions`,
    in each run.

    A position occurs more than once where a row was recomputed or taken anew between two decisions.
    `unmatched` counts rows that one run's decisions read and for which the other run's trace holds none.
    """

    positions: Integers
    read_from: Integers
    records_a: Integers
    records_b: Integers
    unmatched: int


def make_timeline(a: TraceIndex, b: TraceIndex, pair: RequestPair) -> Timeline:
    """Compare the tokens of one pair."""
    prompt_a = np.asarray(a.trace.prompt(pair.number_a), np.int64)
    prompt_b = np.asarray(b.trace.prompt(pair.number_b), np.int64)
    tokens_a = np.concatenate([prompt_a, a.output(pair.number_a)])
    tokens_b = np.concatenate([prompt_b, b.output(pair.number_b)])
    prompt_difference = _first_difference(prompt_a, prompt_b)
    if prompt_difference is None and prompt_a.size != prompt_b.size:
        prompt_difference = min(prompt_a.size, prompt_b.size)
    difference = _first_difference(tokens_a, tokens_b) if prompt_difference is None else None
    end = min(tokens_a.size, tokens_b.size) if difference is None else difference
    if prompt_difference is not None:
        end = prompt_difference
    return Timeline(pair, int(prompt_a.size), tokens_a, tokens_b, prompt_difference, difference, int(end))


def pair_decisions(a: TraceIndex, b: TraceIndex, timeline: Timeline) -> DecisionPairs:
    """Decisions at the same position from the same tokens. A request's last one may have failed: no token was possible.

    Behind equal tokens there is no decision of both runs at `end`, but a failed one.
    """
    if timeline.prompt_difference is not None:
        nothing = np.zeros(0, np.int64)
        return DecisionPairs(*([nothing] * 7))
    left = a.attempts(timeline.pair.number_a)
    right = b.attempts(timeline.pair.number_b)
    positions, i, j = np.intersect1d(left.positions, right.positions, assume_unique=True, return_indices=True)
    keep = positions <= timeline.end
    i, j = i[keep], j[keep]
    return DecisionPairs(
        positions[keep],
        left.steps[i],
        right.steps[j],
        left.records[i],
        right.records[j],
        left.chosen[i],
        right.chosen[j],
    )


def pair_rows(
    timeline: Timeline, history_a: MemoryHistory, history_b: MemoryHistory, decided: DecisionPairs
) -> RowPairs:
    """Match what the decisions of both runs read, version by version. No loop over rows."""
    keys_a, records_a = _read_versions(
        history_a.events(timeline.pair.number_a), timeline.end, decided.positions, decided.steps_a
    )
    keys_b, records_b = _read_versions(
        history_b.events(timeline.pair.number_b), timeline.end, decided.positions, decided.steps_b
    )
    keys = np.union1d(keys_a, keys_b)
    index_a, known_a = _version_at(keys_a, keys)
    index_b, known_b = _version_at(keys_b, keys)
    both = known_a & known_b
    keys = keys[both]
    return RowPairs(
        keys >> 32,
        keys & 0xFFFFFFFF,
        records_a[index_a[both]],
        records_b[index_b[both]],
        int(np.count_nonzero(~both)),
    )


def _read_versions(events: MemoryEvents, end: int, positions: Integers, steps: Integers) -> tuple[Integers, Integers]:
    """Events that some decision read, as increasing keys position << 32 | first reading decision, and
    their records.

    A request without decisions (its trace ended early) counts as read once, at the end.
    """
    events = events.upto(end)
    if positions.size == 0:
        positions, steps = np.array([end], np.int64), np.array([NEVER], np.int64)
    reader = np.maximum(np.searchsorted(steps, events.steps), np.searchsorted(positions, events.positions + 1))
    read = np.flatnonzero(reader < positions.size)
    keys = (events.positions[read] << 32) | positions[reader[read]]
    last = np.ones(keys.size, bool)
    last[:-1] = keys[1:] != keys[:-1]
    return keys[last], events.records[read[last]]


def _version_at(keys: Integers, wanted: Integers) -> tuple[Integers, npt.NDArray[np.bool_]]:
    """For each wanted key the last version at or before it of the same position, and whether there is one."""
    index = np.searchsorted(keys, wanted, side="right") - 1
    known = index >= 0
    known[known] = (keys[index[known]] >> 32) == (wanted[known] >> 32)
    return index, known


def _first_difference(left: Integers, right: Integers) -> int | None:
    shared = min(left.size, right.size)
    different = np.flatnonzero(left[:shared] != right[:shared])
    return int(different[0]) if different.size else None
