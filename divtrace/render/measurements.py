"""What was measured beside the proof, for a terminal: float64 against both runs, and drift past the decision."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table

from divtrace.proof.past_flip import PastFlip, PositionDrift
from divtrace.reference.records import Agreement, ReferenceResult
from divtrace.render.parts import line
from divtrace.render.text import counted, drift, logit, quoted, visible

SHOWN_POSITIONS = 5
AGREEMENT_WORDS = {
    Agreement.A: "run A chose what float64 chooses",
    Agreement.B: "run B chose what float64 chooses",
    Agreement.BOTH: "both runs chose what float64 chooses",
    Agreement.NEITHER: "neither run chose what float64 chooses",
    Agreement.UNKNOWN: "not computed",
}


def reference_lines(result: ReferenceResult) -> Iterator[RenderableType]:
    """Whose choice float64 makes, and the error of each deciding logit."""
    answer = AGREEMENT_WORDS[result.agrees_with]
    if result.unsupported:
        yield line("answer", f"{answer}: {visible(result.unsupported)}")
        return
    choice = "" if result.choice is None else f", {quoted(result.choice)}"
    margin = "" if result.margin is None else f", by a margin of {logit(abs(result.margin))}"
    yield line("answer", f"{answer}{choice}{margin} (computed from {counted(result.tokens, 'token')})")
    table = Table(box=None, pad_edge=False)
    table.add_column("token", overflow="fold")
    for title in ("float64", "error of A", "error of B", "ULPs A", "ULPs B"):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in result.logits:
        ulps = ["-" if value is None else f"{value:+,.0f}" for value in (entry.ulps_a, entry.ulps_b)]
        table.add_row(quoted(entry.token), logit(entry.reference), drift(entry.error_a), drift(entry.error_b), *ulps)
    yield Padding(table, (0, 0, 0, 2))


def past_flip_lines(result: PastFlip) -> Iterator[RenderableType]:
    """Largest and median drift, over all and at the first positions."""
    if not result.positions:
        yield line("measured", "nothing: the decision is the last that run A's tokens, or memory, allow")
        return
    yield line(
        "measured",
        f"{counted(len(result.positions), 'position')} from {result.positions[0].position} on, both runs fed run A's "
        "tokens alone, one row a step",
    )
    yield line("drift", _summary(result.positions))
    if result.restored:
        yield line("without it", f"the cause taken away: {_summary(result.restored)}")
    for at in result.positions[:SHOWN_POSITIONS]:
        choice = "" if at.same_choice else "; the runs prefer different tokens"
        yield line(f"  {at.position}", f"largest {at.largest:.3g}, median {at.median:.3g}{choice}")


def _summary(positions: tuple[PositionDrift, ...]) -> str:
    largest = max(positions, key=lambda at: at.largest)
    medians = sorted(at.median for at in positions)
    flips = sum(not at.same_choice for at in positions)
    return (
        f"any logit moved by at most {largest.largest:.3g} (position {largest.position}), typically by "
        f"{medians[len(medians) // 2]:.3g}; {counted(flips, 'position')} where the runs prefer different tokens"
    )
