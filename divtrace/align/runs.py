"""Two runs opened side by side: their indexes, memories, paired requests and what both recorded."""

from __future__ import annotations

from functools import cached_property

from divtrace.align.history import MemoryHistory
from divtrace.align.index import TraceIndex
from divtrace.align.pairing import Pairing, RequestPair, pair_requests
from divtrace.align.timeline import (
    DecisionPairs,
    RowPairs,
    Timeline,
    make_timeline,
    pair_decisions,
    pair_rows,
)
from divtrace.trace.reader import Trace
from divtrace.trace.schema import Level


class RunPair:
    """Run A and run B. Nothing is read before it is asked for."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a = TraceIndex(a)
        self.b = TraceIndex(b)

    @cached_property
    def pairing(self) -> Pairing:
        """Which request is which."""
        return pair_requests(self.a, self.b)

    @cached_property
    def memory_a(self) -> MemoryHistory:
        """KV memory of run A."""
        return MemoryHistory(self.a)

    @cached_property
    def memory_b(self) -> MemoryHistory:
        """KV memory of run B."""
        return MemoryHistory(self.b)

    def both_have(self, level: Level) -> bool:
        """True when both traces hold `level`."""
        return self.a.has(level) and self.b.has(level)

    @property
    def same_hash(self) -> bool:
        """True when KV rows were hashed by one function in both runs. Logits always are."""
        return self.a.trace.header.hash_name == self.b.trace.header.hash_name

    @property
    def same_layers(self) -> bool:
        """True when KV rows have the same number of layers, so that hashes can be compared one by one."""
        return self.a.layers == self.b.layers

    @property
    def can_compare_rows(self) -> bool:
        """True when both traces hold KV hashes of the same function and shape."""
        return self.both_have(Level.KV) and self.same_hash and self.same_layers

    def timeline(self, pair: RequestPair) -> Timeline:
        """Tokens of one pair, compared."""
        return make_timeline(self.a, self.b, pair)

    def decisions(self, timeline: Timeline) -> DecisionPairs:
        """Decisions of one pair that had equal input tokens."""
        return pair_decisions(self.a, self.b, timeline)

    def rows(self, timeline: Timeline, decided: DecisionPairs) -> RowPairs:
        """KV rows of one pair that those decisions read."""
        return pair_rows(timeline, self.memory_a, self.memory_b, decided)
