"""`divtrace.probe`: at which row counts this machine's kernels change their mind."""

from __future__ import annotations

import time
from collections.abc import Iterable

from divtrace.api.arguments import whole_number
from divtrace.api.sources import foreseen_errors
from divtrace.errors import DivtraceError
from divtrace.probing.budget import OnLongCall
from divtrace.probing.request import (
    DEFAULT_BUDGET_S,
    DEFAULT_ROW_COUNTS,
    LEAST_BUDGET_S,
    SMALL_SHAPES,
    LinearShape,
    ProbeRequest,
)
from divtrace.probing.result import ProbeResult
from divtrace.probing.run import Progress, run_probe
from divtrace.recording import load_shared, resolve_model

BITS = (0, 2, 3, 4, 5, 6, 8)


@foreseen_errors()
def probe(
    *,
    model: str | None = None,
    shapes: Iterable[str | LinearShape] = (),
    rows: Iterable[int] | None = None,
    operations: Iterable[str] = (),
    budget: float | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    on_long_call: OnLongCall | None = None,
) -> ProbeResult:
    """Find the row counts at which a row's bits leave its single-row result, and what else they depend on.

    Args:
        model: probe the linears of this model: a path, a hub id or `smollm2`.
        shapes: probe random weights of these shapes: `"576x1536:4"` (inputs, outputs, bits; 0 for dense), or records.
        rows: row counts, rising; by default 1 to 40 and some larger ones.
        operations: keep only operations that start with one of these words.
        budget: seconds to spend, loading left out; by default what loading left of 54, and 20 at least.
        seed: of random weights and rows.
        progress: called with (case, done, total) before each case.
        on_long_call: called with a case, from another thread, while its first call takes long: a kernel is compiled.

    Returns:
        What `divtrace probe --json` prints, as records.

    Raises:
        DivtraceError: an argument makes no sense, or nothing is left to probe.
    """
    if isinstance(shapes, str) or isinstance(operations, str):
        raise DivtraceError("shapes and operations are lists of texts; put the text between square brackets.")
    whole_number("seed", seed, 0)
    if budget is not None and not isinstance(budget, int | float):
        raise DivtraceError(f"budget is {budget!r}; give seconds as a number.")
    counts = DEFAULT_ROW_COUNTS if rows is None else _row_counts(rows)
    given = tuple(shape if isinstance(shape, LinearShape) else parse_shape(shape) for shape in shapes)
    path = resolve_model(model) if model is not None else None
    started = time.perf_counter()
    loaded = load_shared(path, "float32") if path is not None else None
    if budget is None:
        # The promise of a minute is the whole command's, and a large model takes its part of it.
        budget = max(LEAST_BUDGET_S, DEFAULT_BUDGET_S - (time.perf_counter() - started))
    request = ProbeRequest(
        model=loaded,
        shapes=tuple(dict.fromkeys(given)) or (() if loaded is not None else SMALL_SHAPES),
        row_counts=counts,
        operations=tuple(operations),
        budget_s=budget,
        seed=seed,
    )
    return run_probe(request, progress, on_long_call)


def _row_counts(rows: object) -> tuple[int, ...]:
    counts = tuple(rows) if isinstance(rows, Iterable) else ()
    if not counts or not all(isinstance(count, int) for count in counts):
        raise DivtraceError(f"rows is {rows!r}; give a list of row counts, [1, 2, 8].")
    return counts


def parse_shape(text: str) -> LinearShape:
    """`KxN` or `KxN:BITS`: 4 bits unless told, 0 for dense float32.

    Raises:
        DivtraceError: it is something else.
    """
    size, _, bits = text.partition(":")
    try:
        inputs, outputs = (int(part) for part in size.split("x"))
        shape = LinearShape(inputs, outputs, int(bits) if bits else 4)
    except ValueError:
        raise DivtraceError(f"{text!r} is not KxN or KxN:BITS; write --shape 576x1536:4.") from None
    if shape.bits not in BITS:
        raise DivtraceError(f"{text!r} asks for {shape.bits} bits; give one of {', '.join(map(str, BITS))}.")
    return shape
