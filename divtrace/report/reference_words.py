"""What float64 says of the decision, in a line for the top of a page."""

from __future__ import annotations

from divtrace.reference.records import Agreement, ReferenceResult
from divtrace.report.evidence import quoted_text
from divtrace.verdict.records import BlameResult, Nature

_AGREES = {
    Agreement.A: "as run A did",
    Agreement.B: "as run B did",
    Agreement.BOTH: "as both runs did",
    Agreement.NEITHER: "which neither run wrote",
}


def reference_line(blame: BlameResult) -> str:
    """`It chooses “left”, as run A did, by a gap of 0.1; ...`: whose choice, and how far off both runs are."""
    found = blame.reference
    if found is None or found.choice is None or found.agrees_with not in _AGREES:
        return ""
    margin = f", by a gap of {abs(found.margin):.3g}" if found.margin is not None else ""
    chosen = f"It chooses {quoted_text(found.choice.text)}, {_AGREES[found.agrees_with]}{margin}"
    errors = {run: _largest_error(found, run) for run in "AB"}
    if None in errors.values():
        return f"{chosen}."
    off = ", ".join(f"{error:.2g} in {run}" for run, error in errors.items())
    both = "both runs are within rounding" if blame.nature is Nature.ROUNDING else "both runs are off"
    return f"{chosen}; {both} (logits off by up to {off})."


def _largest_error(found: ReferenceResult, run: str) -> float | None:
    errors = [entry.error_a if run == "A" else entry.error_b for entry in found.logits]
    known = [abs(error) for error in errors if error is not None]
    return max(known) if known and len(known) == len(errors) else None
