"""Which steps undo an outcome and which bring it about, where one step does not do both. Words only."""

from __future__ import annotations

from collections.abc import Iterable

from divtrace.origin.records import OriginResult
from divtrace.proof.records import Direction, Method, ProofResult
from divtrace.render.text import counted, steps_named
from divtrace.report.evidence import quoted_text
from divtrace.verdict.records import BlameResult


def necessary_steps(proof: ProofResult, run: str = "B") -> frozenset[int]:
    """Steps whose change back restores A's outcome, as `run` counts them."""
    return _numbers(proof, proof.cause, run)


def sufficient_steps(proof: ProofResult, run: str = "A") -> frozenset[int]:
    """Steps of the smallest set that brings B's outcome, as `run` counts them; empty where none did."""
    smallest: tuple[int, ...] = min(proof.sufficient, key=len, default=())
    return _numbers(proof, smallest, run)


def both_ways(blame: BlameResult, run: str = "B") -> tuple[str, ...]:
    """One sentence a direction: what undid the outcome in the re-runs, and what brought it about.

    `Undoing step 2 by itself brings “left” back.` and `Step 2 by itself does not bring “lungs” about; with 5 more steps
    (3, 4, 5, 9 and 13) it does.` Empty where one step did both, and where no re-run with the other run's kernels did.
    """
    proof, origins = blame.proof, blame.origins
    if proof is None or origins is None or not (proof.cause or proof.sufficient):
        return ()
    necessary, sufficient = necessary_steps(proof, run), sufficient_steps(proof, run)
    if necessary == sufficient and len(necessary) == 1:
        return ()
    own, other = results(origins)
    is_undone = _came_out(proof, proof.cause, Direction.RESTORE, flips=True)
    undone = f"Undoing {_together(necessary)} brings {own} back." if is_undone else ""
    brought = _brought(proof, run, f"bring {other} about")
    return tuple(part for part in (undone, brought) if part)


def results(origins: OriginResult) -> tuple[str, str]:
    """What run A came out with, and run B."""
    if not origins.flipped:
        return "run A’s logits", "run B’s logits"
    return quoted_text(origins.token_a.text), quoted_text(origins.token_b.text)


def _came_out(proof: ProofResult, chosen: tuple[int, ...], direction: Direction, flips: bool) -> bool:
    """Whether a re-run with the other run's kernels in exactly these candidates did, or did not, change the outcome."""
    tried = (t for t in proof.trials if t.direction is direction and t.method is Method.PATH and t.flips is flips)
    return bool(chosen) and any(set(trial.candidates) == set(chosen) for trial in tried)


def _fewer(proof: ProofResult) -> str:
    """` (fewer may do)` where the search for the smallest set was cut short."""
    return " (fewer may do)" if proof.note and len(sufficient_steps(proof)) > 1 else ""


def _brought(proof: ProofResult, run: str, bring: str) -> str:
    necessary, sufficient = necessary_steps(proof, run), sufficient_steps(proof, run)
    has_failed = _came_out(proof, proof.cause, Direction.INDUCE, flips=False)
    weak = f"{_together(necessary).capitalize()} {_do(necessary)} not {bring}" if has_failed else ""
    if not sufficient:
        return f"{weak}, nor does anything else that was tried." if weak else ""
    if not all(_came_out(proof, some, Direction.INDUCE, flips=True) for some in proof.sufficient):
        return ""
    more, fewer = sufficient - necessary, _fewer(proof)
    if weak and more and necessary <= sufficient:
        return f"{weak}; with {_more_named(more)} {'it does' if len(necessary) == 1 else 'they do'}{fewer}."
    if len(proof.sufficient) > 1 and len(sufficient) == 1:
        each = steps_named(step for some in proof.sufficient for step in _numbers(proof, some, run))
        return f"Each of {each} can {bring} by itself."
    return f"{_together(sufficient).capitalize()} can {bring}{fewer}."


def _more_named(steps: frozenset[int]) -> str:
    """`5 more steps (3, 4, 5, 9 and 13)`."""
    return f"{counted(len(steps), 'more step')} ({steps_named(steps).removeprefix('steps ').removeprefix('step ')})"


def _together(steps: frozenset[int]) -> str:
    return f"{steps_named(steps)} {'by itself' if len(steps) == 1 else 'together'}"


def _do(steps: frozenset[int]) -> str:
    return "does" if len(steps) == 1 else "do"


def _numbers(proof: ProofResult, chosen: Iterable[int], run: str) -> frozenset[int]:
    candidates = (proof.candidates[i] for i in chosen)
    return frozenset(c.step_a if run == "A" else c.step_b for c in candidates)
