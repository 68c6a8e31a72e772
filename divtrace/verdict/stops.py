"""Facts that end the matter before any path is looked at: other sampling settings, a run that decided nothing."""

from __future__ import annotations

import numpy as np

from divtrace.align.runs import RunPair
from divtrace.divergence.records import DiffResult
from divtrace.origin.records import OriginResult
from divtrace.recorder.step_flags import StepFlag
from divtrace.verdict.records import Confidence, Nature, Verdict
from divtrace.verdict.verdict import Judgement


def other_sampling(diff: DiffResult, origins: OriginResult) -> Judgement | None:
    """Other sampling settings may choose another token from equal logits: nothing about kernels follows from it.

    None where the request was sampled alike, or neither flipped nor failed.
    """
    prefix = f"requests.{origins.request_a}.sampling."
    changed = [d for d in diff.inputs.differences if d.path.startswith(prefix)]
    if not changed or not (origins.flipped or origins.failed):
        return None
    first = changed[0]
    return Judgement(
        Verdict.INPUTS_DIFFER,
        Nature.INPUTS,
        Confidence.SHOWN,
        f"request {origins.request_a!r} was sampled by other settings: {first.path.removeprefix(prefix)} is "
        f"{first.a} in run A and {first.b} in run B",
    )


def never_decided(runs: RunPair, diff: DiffResult, request: str | None) -> Judgement | None:
    """K/V rows differ and a run ended before it decided anything: no outcome to explain, but a place to name."""
    asked = [r for r in diff.requests if request is None or request in (r.id_a, r.id_b)]
    if any(runs.decisions(runs.timeline(runs.pairing.find(r.id_a))).positions.size for r in asked):
        return None
    first = next((r.first_row_difference for r in asked if r.first_row_difference is not None), None)
    if first is None:
        return None
    bad = _steps_not_finite(runs)
    where = f"; NaN or Inf from {' and '.join(bad)} on" if bad else ""
    return Judgement(
        Verdict.NOT_DECIDABLE,
        Nature.UNDECIDED,
        Confidence.NONE,
        f"no decision was made in both runs; the first K/V row that differs is position {first.position} in layer "
        f"{first.layer}, of step {first.step_b} in run B{where}",
        ("record both runs up to a token, or look at what ended the shorter one",),
    )


def _steps_not_finite(runs: RunPair) -> list[str]:
    """The first step of each run that was flagged for NaN or Inf."""
    found = []
    for name, index in (("A", runs.a), ("B", runs.b)):
        steps = np.flatnonzero(index.column("steps", "flags") & (StepFlag.LOGITS_NOT_FINITE | StepFlag.KV_NOT_FINITE))
        if steps.size:
            found.append(f"step {steps[0]} of run {name}")
    return found
