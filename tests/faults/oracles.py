"""Truths, made from what a fault says of itself or from two schedules side by side. They share no code with blame."""

from __future__ import annotations

from collections.abc import Callable

from divtrace.origin.records import SiteClass
from divtrace.trace.reader import Trace, open_trace
from divtrace.verdict.records import Verdict
from tests.faults.case import Oracle, Pair, Truth


def planted(
    verdict: Verdict,
    layer: int | None,
    site_class: SiteClass | None,
    request: str | None = None,
    place: Callable[[Pair], int] | None = None,
) -> Oracle:
    """The first place where the fault of run B (or of A, where B has none) struck, in `request` where given.

    A fault of A stands at the same step of B, so both runs must have one schedule.
    """

    def oracle(pair: Pair) -> Truth:
        places = pair.ran_b.fault.struck or pair.ran_a.fault.struck
        struck = [s for s in places if request is None or s.request == request]
        if not struck:
            raise LookupError(f"{pair.case.name}: the fault never struck")
        first = min(struck, key=lambda s: s.step)
        position = place(pair) if place else first.position
        causes = tuple(sorted({s.step for s in struck}))
        return Truth(verdict, first.request, first.step, position, layer, site_class, causes)

    return oracle


def inputs(verdict: Verdict = Verdict.INPUTS_DIFFER) -> Oracle:
    """No place: what differs is outside the runs."""
    return lambda _pair: Truth(verdict)


def at_flip(verdict: Verdict, request: str, verdict_only: bool = False) -> Oracle:
    """The first position of `request` whose committed token differs: for faults behind the logits it is the origin."""

    def oracle(pair: Pair) -> Truth:
        left, right = pair.ran_a.outputs[request], pair.ran_b.outputs[request]
        index = next(i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y)
        if verdict_only:
            return Truth(verdict)
        position = next(len(r.prompt) for r in pair.b.requests if r.id == request) + index
        with open_trace(pair.path_b) as trace:
            rows = zip(*(trace.column("sampled", c).tolist() for c in ("request", "position", "step")), strict=True)
            number = list(trace.request_ids()).index(request)
            step = next(s for n, p, s in rows if (n, p) == (number, position))
        return Truth(verdict, request, step, position, None, None)

    return oracle


def by_schedules(verdict: Verdict, request: str) -> Oracle:
    """The first position of `request` whose rows were computed under different paths, from plans and segments alone."""

    def oracle(pair: Pair) -> Truth:
        with open_trace(pair.path_a) as a, open_trace(pair.path_b) as b:
            left, right = _Schedule(a), _Schedule(b)
            limit = left.divergence(right, request)
            best: tuple[int, int, str] | None = None
            for position in range(limit):
                for (step_a, _), (step_b, who) in zip(
                    left.writers(request, position), right.writers(request, position), strict=False
                ):
                    if left.paths(step_a) != right.paths(step_b) and (best is None or step_b < best[0]):
                        best = step_b, position, who
            if best is None:
                raise LookupError(f"{pair.case.name}: no path differs below the flip")
            step, _, who = best
            # One name may hide a kernel whose bits follow the row count: rows of this step may differ before that.
            differing = (p for p in range(limit) if right.writers(request, p) == [(step, who)])
            position = next(p for p in differing if left.digest(request, p) != right.digest(request, p))
            return Truth(verdict, who, step, position, 0, SiteClass.QKV)

    return oracle


class _Schedule:
    """Who wrote each position, and the layers' paths of each step."""

    def __init__(self, trace: Trace) -> None:
        self.names = list(trace.request_ids())
        self._plans = trace.column("steps", "plan").tolist()
        self._sites = self._read_sites(trace)
        self._writes: dict[tuple[str, int], list[tuple[int, str]]] = {}
        segments = zip(
            *(trace.column("segments", c).tolist() for c in ("step", "request", "first_position", "rows")), strict=True
        )
        reused = zip(
            *(trace.column("reused", c).tolist() for c in ("request", "position", "writer_request", "writer_step")),
            strict=True,
        )
        for step, number, first, rows in segments:
            for position in range(first, first + rows):
                self._writes.setdefault((self.names[number], position), []).append((step, self.names[number]))
        for number, position, writer, step in reused:
            self._writes.setdefault((self.names[number], position), []).append((step, self.names[writer]))
        self._digests = self._read_digests(trace)
        self._tokens = {name: self._output(trace, index) for index, name in enumerate(self.names)}

    def writers(self, request: str, position: int) -> list[tuple[int, str]]:
        """The last write of a position: step and who wrote."""
        return self._writes.get((request, position), [])[-1:]

    def digest(self, request: str, position: int) -> int:
        """Digest of the last write of a position."""
        step, who = self.writers(request, position)[0]
        return self._digests[step, who, position]

    def paths(self, step: int) -> tuple[tuple[str, str], ...]:
        """Site and path of the layers' linears and attention."""
        return self._sites[self._plans[step]]

    def divergence(self, other: _Schedule, request: str) -> int:
        """The first position whose token differs; the shorter length where none does."""
        left, right = self._tokens[request], other._tokens[request]
        shared = min(len(left), len(right))
        return next((i for i in range(shared) if left[i] != right[i]), shared)

    def _read_digests(self, trace: Trace) -> dict[tuple[int, str, int], int]:
        columns = (trace.column("rows", name).tolist() for name in ("step", "request", "position", "digest"))
        return {(step, self.names[who], position): digest for step, who, position, digest in zip(*columns, strict=True)}

    @staticmethod
    def _output(trace: Trace, index: int) -> list[int]:
        return [*map(int, trace.prompt(index)), *map(int, trace.output(index))]

    @staticmethod
    def _read_sites(trace: Trace) -> list[tuple[tuple[str, str], ...]]:
        starts, counts = (trace.column("plans", c).tolist() for c in ("site_offset", "site_count"))
        sites = trace.column("plan_sites", "site_string").tolist()
        paths = trace.column("plan_sites", "path_string").tolist()
        return [
            tuple(
                (trace.string(sites[i]), trace.string(paths[i]))
                for i in range(start, start + count)
                if ".layers." in trace.string(sites[i])
            )
            for start, count in zip(starts, counts, strict=True)
        ]
