"""Reads requests, settings and the exact schedule of a run out of its trace, so that it can be played back."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from divtrace.errors import EvidenceError, TraceError
from divtrace.replay.paths import recorded_overrides
from divtrace.trace.reader import Trace
from engine.decide import ForcedTokens
from engine.errors import SettingsError
from engine.kernels.policy import SiteOverride
from engine.request import Arrival, Request, SamplingParams
from engine.scheduling.pinned import PinnedRows, PinnedStep
from engine.settings import EngineSettings, parse_settings

ENDED_FROM_OUTSIDE = ("cancelled", "timed_out")
FAILED = "failed"
_SAMPLING = TypeAdapter(SamplingParams)
_OVERRIDES = TypeAdapter(tuple[SiteOverride, ...])


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Everything that a playback needs: resolved settings, requests, one pinned step per step, committed tokens.

    `overrides` are the paths that the run took and that its policy alone does not give.
    """

    settings: EngineSettings
    requests: tuple[Request, ...]
    steps: tuple[PinnedStep, ...]
    forced: ForcedTokens
    overrides: tuple[SiteOverride, ...]
    dtype: str


def read_run(trace: Trace) -> RecordedRun:
    """Read a recorded run.

    Raises:
        EvidenceError: the trace was not written by this project's engine, or lacks its settings.
        TraceError: a value in it makes no sense.
    """
    settings = dict(trace.header.settings)
    model = settings.pop("model", {})
    overrides = settings.pop("overrides", ())
    if not settings:
        raise EvidenceError(
            f"{trace.path} holds no engine settings, so it cannot be replayed; record it with divtrace."
        )
    requests = tuple(_request(trace, index, name) for index, name in enumerate(trace.request_ids()))
    outputs = {request.id: tuple(int(token) for token in trace.output(index)) for index, request in enumerate(requests)}
    resolved = _settings(trace, settings)
    return RecordedRun(
        settings=resolved,
        requests=requests,
        steps=_steps(trace, [request.id for request in requests]),
        forced=ForcedTokens(outputs),
        overrides=(*_overrides(trace, overrides), *recorded_overrides(trace, resolved.kernel_policy())),
        dtype=str(model.get("dtype", "float32")) if isinstance(model, dict) else "float32",
    )


def _settings(trace: Trace, values: Mapping[str, Any]) -> EngineSettings:
    try:
        return parse_settings(values, f"settings of {trace.path}")
    except SettingsError as error:
        raise TraceError(f"{error} The trace is damaged, or another version wrote it; record the run again.") from None


def _overrides(trace: Trace, values: Any) -> tuple[SiteOverride, ...]:
    try:
        return _OVERRIDES.validate_python(values)
    except ValueError:
        raise TraceError(f"{trace.path}: its kernel overrides make no sense; record the run again.") from None


def _request(trace: Trace, index: int, name: str) -> Request:
    values = _json_of(trace, trace.string(int(trace.column("requests", "settings_string")[index])), name)
    try:
        return Request(
            id=name,
            prompt=tuple(int(token) for token in trace.prompt(index)),
            max_tokens=int(values["max_tokens"]),
            sampling=_SAMPLING.validate_python(values.get("sampling", {})),
            stop_token_ids=tuple(int(t) for t in values.get("stop_token_ids", ())),
            stop_strings=tuple(str(s) for s in values.get("stop_strings", ())),
            ignore_eos=bool(values.get("ignore_eos", False)),
            priority=int(values.get("priority", 0)),
            arrival=Arrival(),
            sample_of=None if values.get("sample_of") is None else str(values["sample_of"]),
        )
    except (KeyError, TypeError, ValueError):
        raise TraceError(
            f"{trace.path}: the settings of request {name!r} make no sense; record the run again."
        ) from None


def _json_of(trace: Trace, text: str, name: str) -> Mapping[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        raise TraceError(f"{trace.path}: the settings of request {name!r} are no JSON object; record the run again.")
    return values


def _steps(trace: Trace, names: Sequence[str]) -> tuple[PinnedStep, ...]:
    rows = _rows_by_step(trace, names)
    preempted: dict[int, list[str]] = defaultdict(list)
    ended: dict[int, list[str]] = defaultdict(list)
    failed: dict[int, list[str]] = defaultdict(list)
    kinds = [trace.string(int(k)) for k in trace.column("events", "kind_string")]
    for kind, step, request in zip(
        kinds, trace.column("events", "step"), trace.column("events", "request"), strict=True
    ):
        if kind == "preempted":
            preempted[int(step)].append(names[int(request)])
        elif kind in ENDED_FROM_OUTSIDE:
            ended[int(step)].append(names[int(request)])
        elif kind == FAILED:
            failed[int(step) + 1].append(names[int(request)])
    return tuple(
        PinnedStep(tuple(rows[step]), tuple(preempted[step]), tuple(ended[step]), tuple(failed[step]))
        for step in range(trace.step_count)
    )


def _rows_by_step(trace: Trace, names: Sequence[str]) -> dict[int, list[PinnedRows]]:
    proposals = _proposals(trace, names)
    columns = ("step", "request", "first_position", "rows", "cached_tokens", "proposed_tokens")
    rows: dict[int, list[PinnedRows]] = defaultdict(list)
    for values in zip(*(trace.column("segments", name).tolist() for name in columns), strict=True):
        step, request, first, count, cached, proposed = values
        name = names[request]
        if proposed >= count:
            raise TraceError(
                f"{trace.path}: step {step} feeds {count} rows, {proposed} of them proposals; it is damaged."
            )
        rows[step].append(PinnedRows(name, first, count - proposed, cached, proposals.get((step, name), ())))
    return rows


def _proposals(trace: Trace, names: Sequence[str]) -> dict[tuple[int, str], tuple[int, ...]]:
    columns = ("step", "request", "proposed_offset", "proposed_count")
    return {
        (step, names[request]): tuple(int(t) for t in trace.token_list(offset, count))
        for step, request, offset, count in zip(
            *(trace.column("drafts", name).tolist() for name in columns), strict=True
        )
    }
