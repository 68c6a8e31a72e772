"""Delta debugging over candidates. Pure: knows sets of indices and a test, nothing of runs.

Source: Zeller and Hildebrandt 2002, "Simplifying and isolating failure-inducing input" (ddmin). With one cause among n
candidates it needs about 2 * log2(n) tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Indices = tuple[int, ...]
Test = Callable[[Indices], bool]


def minimize(candidates: Sequence[int], test: Test) -> Indices:
    """A 1-minimal subset for which `test` still holds: taking any one element out makes it fail.

    Args:
        candidates: distinct indices; `test(candidates)` must hold.
        test: deterministic; asked again for the same set it may be asked from a cache.
    """
    kept = tuple(candidates)
    parts = 2
    while len(kept) >= 2:
        chunks = _split(kept, parts)
        smaller = next((chunk for chunk in chunks if test(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        complements = [tuple(i for i in kept if i not in chunk) for chunk in chunks] if parts > 2 else []
        without = next((rest for rest in complements if test(rest)), None)
        if without is not None:
            kept, parts = without, max(parts - 1, 2)
        elif parts < len(kept):
            parts = min(len(kept), parts * 2)
        else:
            break
    return kept


def _split(indices: Indices, parts: int) -> list[Indices]:
    size, extra = divmod(len(indices), parts)
    chunks, start = [], 0
    for part in range(parts):
        end = start + size + (part < extra)
        chunks.append(indices[start:end])
        start = end
    return [chunk for chunk in chunks if chunk]
