"""The corpus: every kind of fault, on several models. Truths come from oracles, never from blame."""

from __future__ import annotations

from collections.abc import Iterator

from tests.faults import cases_inputs, cases_memory, cases_paths, cases_schedules, cases_selection
from tests.faults.case import Case


def corpus(smollm2: bool = True) -> list[Case]:
    """All cases; without `smollm2` only those on tiny models."""
    return [case for case in _all() if smollm2 or "smollm2" not in case.name]


def _all() -> Iterator[Case]:
    yield from cases_paths.cases()
    yield from cases_schedules.cases()
    yield from cases_memory.cases()
    yield from cases_selection.cases()
    yield from cases_inputs.cases()
