"""Keeps the results of re-runs in a folder, so that an interrupted proof goes on where it stopped.

A cache belongs to two traces, one decision and one list of candidates: its file name is their digest. What cannot be
read as such is ignored, never trusted. Must not know how results are made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash
from pydantic import TypeAdapter

from divtrace.origin.records import Candidate, OriginResult
from divtrace.proof.records import NeutralTrial, ReplayControl, Trial
from divtrace.trace.reader import Trace


@dataclass(slots=True)
class Results:
    """Results by what was asked: runs, `direction:method:indices`, and `neutral:indices`."""

    controls: dict[str, ReplayControl] = field(default_factory=dict)
    trials: dict[str, Trial] = field(default_factory=dict)
    neutral_trials: dict[str, NeutralTrial] = field(default_factory=dict)


_RESULTS = TypeAdapter(Results)


class ResultCache:
    """Results of one proof, written to `folder` after every re-run (`folder` None: kept in memory alone)."""

    def __init__(self, folder: Path | None, fingerprint: str) -> None:
        self._path = None if folder is None else folder / f"proof-{fingerprint}.json"
        self.results = self._read()

    def save(self) -> None:
        """Write everything; a reader sees the old file or the new one, never half of it."""
        if self._path is None:
            return
        partial = self._path.with_suffix(".part")
        partial.write_bytes(_RESULTS.dump_json(self.results))
        partial.replace(self._path)

    def _read(self) -> Results:
        if self._path is None:
            return Results()
        try:
            return _RESULTS.validate_json(self._path.read_bytes())
        except (OSError, ValueError):
            return Results()


def fingerprint(traces: Sequence[Trace], origins: OriginResult, candidates: Sequence[Candidate]) -> str:
    """Digest of everything that results depend on: both traces, the decision and the candidates."""
    hasher = xxhash.xxh3_128()
    for trace in traces:
        header = trace.header
        identity = (header.weights_hash, header.settings, header.environment, trace.step_count, trace.request_ids())
        hasher.update(repr(identity).encode())
        for table, column in (
            ("token_lists", "value"),
            ("sampled", "chosen"),
            ("sampled", "logits_hash"),
            ("rows", "digest"),
        ):
            if trace.has_column(table, column):
                hasher.update(np.ascontiguousarray(trace.column(table, column)).tobytes())
    decision = (origins.request_a, origins.request_b, origins.position, origins.step_a, origins.step_b)
    hasher.update(repr((decision, tuple(candidates))).encode())
    return hasher.hexdigest()
