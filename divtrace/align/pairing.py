"""Which request of run A is which request of run B: by id, else by prompt. Nothing unmatched is dropped
silently.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from divtrace.align.index import TraceIndex
from divtrace.errors import DivtraceError


@dataclass(frozen=True, slots=True)
class RequestPair:
    """One request in both runs: its number (row of table `requests`) and id in each. `matched_by` is `id`
    or `prompt`.
    """

    number_a: int
    number_b: int
    id_a: str
    id_b: str
    matched_by: str


@dataclass(frozen=True, slots=True)
class AmbiguousPrompt:
    """Requests whose ids differ and whose prompt occurs more than once: no pairing is better than another."""

    ids_a: tuple[str, ...]
    ids_b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pairing:
    """Every request of both runs, in exactly one of these places."""

    pairs: tuple[RequestPair, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    ambiguous: tuple[AmbiguousPrompt, ...]

    def find(self, request_id: str) -> RequestPair:
        """The pair that holds `request_id` (run A's id, else run B's).

        Raises:
            DivtraceError: no such request, or it has no partner; the message lists those that have one.
        """
        for pair in (
            *(p for p in self.pairs if p.id_a == request_id),
            *(p for p in self.pairs if p.id_b == request_id),
        ):
            return pair
        known = ", ".join(_first(pair.id_a for pair in self.pairs)) or "none"
        if any(request_id in group.ids_a + group.ids_b for group in self.ambiguous):
            raise DivtraceError(
                f"request {request_id!r} cannot be paired: several requests share its prompt "
                "and their ids differ; record both runs with the same ids."
            )
        for run, ids in (("A", self.only_in_a), ("B", self.only_in_b)):
            if request_id in ids:
                raise DivtraceError(f"request {request_id!r} exists in run {run} only; requests in both runs: {known}.")
        raise DivtraceError(f"no request {request_id!r} in these traces; requests in both runs: {known}.")


def pair_requests(a: TraceIndex, b: TraceIndex) -> Pairing:
    """Pair by id first, then what is left by equal prompts where exactly one request on each side has
    that prompt.
    """
    by_id_b = {name: number for number, name in enumerate(b.request_ids)}
    pairs = [
        RequestPair(number, by_id_b[name], name, name, "id")
        for number, name in enumerate(a.request_ids)
        if name in by_id_b
    ]
    taken = {pair.id_a for pair in pairs}
    left_a = _by_prompt(a, taken)
    left_b = _by_prompt(b, taken)
    ambiguous: list[AmbiguousPrompt] = []
    only_a: list[int] = []
    for prompt, numbers_a in left_a.items():
        numbers_b = left_b.pop(prompt, [])
        if len(numbers_a) == 1 and len(numbers_b) == 1:
            i, j = numbers_a[0], numbers_b[0]
            pairs.append(RequestPair(i, j, a.request_ids[i], b.request_ids[j], "prompt"))
        elif numbers_b:
            ambiguous.append(AmbiguousPrompt(_ids(a, numbers_a), _ids(b, numbers_b)))
        else:
            only_a.extend(numbers_a)
    only_b = sorted(number for numbers in left_b.values() for number in numbers)
    pairs.sort(key=lambda pair: pair.number_a)
    return Pairing(tuple(pairs), _ids(a, sorted(only_a)), _ids(b, only_b), tuple(ambiguous))


def _by_prompt(index: TraceIndex, taken: set[str]) -> dict[tuple[int, ...], list[int]]:
    groups: Mapping[tuple[int, ...], list[int]] = defaultdict(list)
    for number, name in enumerate(index.request_ids):
        if name not in taken:
            groups[tuple(int(token) for token in index.trace.prompt(number))].append(number)
    return dict(groups)


def _ids(index: TraceIndex, numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(index.request_ids[number] for number in numbers)


def _first(names: Iterable[str], count: int = 8) -> list[str]:
    listed = [repr(name) for name in names]
    return listed if len(listed) <= count else [*listed[:count], f"and {len(listed) - count} more"]
