"""The decision under test, as each run made it. Reads traces and origins; must not run anything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from divtrace.errors import EvidenceError
from divtrace.origin.records import OriginResult
from divtrace.replay.choices import repeatable_choices
from divtrace.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Deciding:
    """One run's decision. `rival_token` is the other run's token, or where both chose the same one the runner-up.

    `rival_token` and `logits_hash` are None where the trace holds no logits. `record` is its row in table `sampled`.
    `is_repeatable` is False where a playback cannot make the choice again (rejection sampling).
    """

    run: str
    record: int
    step: int
    request_id: str
    position: int
    own_token: int
    other_token: int
    rival_token: int | None
    logits_hash: int | None
    is_repeatable: bool

    @property
    def is_flip(self) -> bool:
        """True when the other run chose another token."""
        return self.own_token != self.other_token

    def margin(self, processed: npt.NDArray[np.float32]) -> float | None:
        """Own logit minus the rival's in a processed row, float32 (vocabulary,)."""
        if self.rival_token is None:
            return None
        return float(processed[self.own_token] - processed[self.rival_token])


def deciding(run: str, trace: Trace, origins: OriginResult) -> Deciding:
    """The decision that `origins` explains, as `run` (A or B) made it.

    Raises:
        EvidenceError: the trace has no such decision.
    """
    is_a = run == "A"
    request = origins.request_a if is_a else origins.request_b
    step = origins.step_a if is_a else origins.step_b
    own, other = (origins.token_a.id, origins.token_b.id) if is_a else (origins.token_b.id, origins.token_a.id)
    record = _record(trace, trace.request_ids().index(request), origins.position, step)
    repeatable = bool(repeatable_choices(trace)[record])
    rival: int | None = other if own != other else None
    logits_hash = None
    if trace.has_column("sampled", "logits_hash"):
        logits_hash = int(trace.column("sampled", "logits_hash", record, record + 1)[0])
        top = trace.column("sampled", "processed_top_ids", record, record + 1)[0].tolist()
        rival = rival if rival is not None else next((token for token in top if token != own), None)
    return Deciding(run, record, step, request, origins.position, own, other, rival, logits_hash, repeatable)


def _record(trace: Trace, request: int, position: int, step: int) -> int:
    columns = (trace.column("sampled", name) for name in ("request", "position", "step"))
    requests, positions, steps = columns
    found = np.flatnonzero((requests == request) & (positions == position) & (steps == step))
    if found.size == 0:
        raise EvidenceError(
            f"{trace.path} has no decision of position {position} in step {step}; record the run again."
        )
    return int(found[-1])
