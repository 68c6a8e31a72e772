"""Runs blame on every planted pair and prints how often it was right: `python -m tests.faults.score`."""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from divtrace.errors import DivtraceError
from divtrace.trace.reader import open_trace
from divtrace.verdict.blame import ProofOptions, blame
from divtrace.verdict.records import BlameResult, Verdict
from tests.faults.build import installed
from tests.faults.case import Case, Pair, Truth, plant
from tests.faults.kernels import fault_kernels


@dataclass(frozen=True, slots=True)
class Blamed:
    """The place that an answer names: its first origin, and the steps of run B that the proof calls the cause."""

    request: str | None
    step: int | None
    position: int | None
    layer: int | None
    site_classes: tuple[str, ...]
    causes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Score:
    """One pair: the truth, the answer, and which parts of the origin are right."""

    case: Case
    seed: int
    truth: Truth
    verdict: Verdict | None
    blamed: Blamed | None
    parts: dict[str, bool]
    reruns: int
    elapsed_s: float
    reason: str

    @property
    def verdict_right(self) -> bool:
        """The verdict is the planted one."""
        return self.verdict is self.truth.verdict

    @property
    def origin_right(self) -> bool:
        """Every part of the origin that the truth has is the planted one."""
        return all(self.parts.values())

    @property
    def is_undecided(self) -> bool:
        """An honest "not decidable"."""
        return self.verdict is Verdict.NOT_DECIDABLE

    @property
    def is_wrong(self) -> bool:
        """Something else was blamed than what was planted."""
        return not self.is_undecided and not (self.verdict_right and self.origin_right)


def score_case(case: Case, folder: Path) -> Score:
    """Plant one pair and blame it."""
    with fault_kernels():
        pair = plant(case, folder)
        truth = case.oracle(pair)
        started = time.perf_counter()
        result, reason = _blame(pair, folder)
        elapsed = time.perf_counter() - started
    blamed = blamed_place(result) if result is not None else None
    return Score(
        case=case,
        seed=pair.seed,
        truth=truth,
        verdict=result.verdict if result is not None else None,
        blamed=blamed,
        parts=_parts(truth, blamed),
        reruns=result.proof.reruns if result is not None and result.proof is not None else 0,
        elapsed_s=elapsed,
        reason=reason,
    )


def _blame(pair: Pair, folder: Path) -> tuple[BlameResult | None, str]:
    with open_trace(pair.path_a) as a, open_trace(pair.path_b) as b, installed(pair.case.build):
        options = ProofOptions(lambda: pair.b.loaded, folder / "proof")
        try:
            result = blame(a, b, pair.case.request, proof=options)
        except DivtraceError as error:
            return None, f"error: {error}"
    return result, result.reason


def blamed_place(result: BlameResult) -> Blamed:
    """What an answer points at; nothing where it names no origin."""
    if result.origins is None or not result.origins.origins:
        return Blamed(None, None, None, None, ())
    origin = result.origins.origins[0]
    cause = [result.proof.candidates[i].step_b for i in result.proof.cause] if result.proof is not None else []
    return Blamed(
        origin.request_b,
        origin.step_b,
        origin.first_position,
        origin.layer,
        tuple(site_class.value for site_class in origin.site_classes),
        tuple(cause),
    )


def _parts(truth: Truth, blamed: Blamed | None) -> dict[str, bool]:
    wanted = {"request": truth.request, "step": truth.step, "position": truth.position, "layer": truth.layer}
    parts = {
        name: blamed is not None and getattr(blamed, name) == value
        for name, value in wanted.items()
        if value is not None
    }
    if truth.site_class is not None:
        parts["site"] = blamed is not None and truth.site_class.value in blamed.site_classes
    if truth.causes and blamed is not None and (blamed.causes or truth.step is None):
        parts["cause"] = bool(blamed.causes) and set(blamed.causes) <= set(truth.causes)
    return parts


def run(cases: Iterable[Case], verbose: bool = False) -> list[Score]:
    """Score every case, printing a line each."""
    scores = []
    for case in cases:
        with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
            try:
                score = score_case(case, Path(temporary))
            except Exception as error:
                print(f"{case.kind:34} {case.name:30} BROKEN: {error!r}", flush=True)
                if verbose:
                    traceback.print_exc()
                continue
        scores.append(score)
        print(_line(score, verbose), flush=True)
    return scores


def _line(score: Score, verbose: bool) -> str:
    wrong = [name for name, right in score.parts.items() if not right]
    state = "WRONG" if score.is_wrong else "undecided" if score.is_undecided else "right"
    text = (
        f"{score.case.kind:34} {score.case.name:30} {state:9} {score.verdict or 'error'!s:32} "
        f"seed {score.seed:3} {score.reruns:3} re-runs {score.elapsed_s:5.1f} s "
        f"{'origin: ' + ','.join(wrong) if wrong else ''}"
    )
    if verbose and (score.is_wrong or score.is_undecided):
        text += f"\n    truth {score.truth}\n    blamed {score.blamed}\n    {score.reason}"
    return text


def table(scores: Sequence[Score]) -> str:
    """The table of docs/verdicts.md: a line a kind, then totals."""
    lines = [
        "| planted | pairs | verdict right | origin right | not decidable | wrong blame | re-runs, median |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    kinds = list(dict.fromkeys(score.case.kind for score in scores))
    for kind in [*kinds, "**all**"]:
        mine = [s for s in scores if kind in (s.case.kind, "**all**")]
        counts = (
            len(mine),
            sum(s.verdict_right for s in mine),
            sum(s.verdict_right and s.origin_right for s in mine),
            sum(s.is_undecided for s in mine),
            sum(s.is_wrong for s in mine),
        )
        reruns = statistics.median([s.reruns for s in mine])
        lines.append(f"| {kind} | " + " | ".join(map(str, counts)) + f" | {reruns:g} |")
    return "\n".join(lines)


def main() -> int:
    """Exit code 1 when anything was blamed wrongly or could not be run."""
    from tests.faults.corpus import corpus

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose kind or name holds this")
    parser.add_argument("--fast", action="store_true", help="without SmolLM2")
    parser.add_argument("-v", "--verbose", action="store_true")
    options = parser.parse_args()
    cases = [c for c in corpus(smollm2=not options.fast) if options.only in f"{c.kind} {c.name}"]
    scores = run(cases, options.verbose)
    print("\n" + (table(scores) if scores else "nothing was scored"))
    return int(any(s.is_wrong for s in scores) or len(scores) < len(cases))


if __name__ == "__main__":
    sys.exit(main())
