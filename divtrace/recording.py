"""Runs workloads under the recorder: one trace per arm. The only place, with replay and probe, that runs an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from divtrace.errors import DivtraceError
from divtrace.model_store import fetch_smollm2
from divtrace.recorder.interrupts import interrupts_deferred
from divtrace.recorder.recorder import Recorder
from divtrace.recorder.tensors import TensorSettings
from divtrace.trace.schema import Level
from engine.decide import ForcedTokens
from engine.engine import Engine
from engine.kernels.policy import SiteOverride
from engine.model.load import LoadedModel, load_model
from engine.request import Completion, Request
from engine.scheduling.pinned import PinnedStep
from engine.settings import EngineSettings
from engine.workload import WorkloadSpec, build_requests

StepCallback = Callable[[Engine], None]
NAMED_MODELS = {"smollm2": fetch_smollm2}


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a workload: a name (also of its trace file) and resolved settings."""

    name: str
    settings: EngineSettings


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """What a trace holds and how the file is treated.

    `top_k` logits are kept per sampled row; K/V memory is audited every `audit_every` steps, 0 for never. `tensors`
    says which whole arrays level tensors keeps.
    """

    level: Level = Level.KV
    top_k: int = 8
    overwrite: bool = False
    audit_every: int = 0
    tensors: TensorSettings | None = None


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm left: its trace, completions by request id, steps that ran."""

    arm: Arm
    path: Path
    completions: Mapping[str, Completion]
    steps: int

    def __fspath__(self) -> str:
        """The path of the trace, so that a result can be given wherever a trace's path is."""
        return str(self.path)


def resolve_model(name: str, relative_to: Path | None = None) -> str:
    """`smollm2` is fetched, a path may be relative to the workload's folder, anything else is a hub id."""
    if name in NAMED_MODELS:
        return str(NAMED_MODELS[name]())
    if relative_to is not None and (relative_to / name).exists():
        return str(relative_to / name)
    return name


@lru_cache(maxsize=1)
def load_shared(source: str, dtype: str) -> LoadedModel:
    """Load a model, or return the one that this process loaded last; its dense weights are then there already."""
    return load_model(source, dtype)


def load_workload_model(spec: WorkloadSpec, relative_to: Path | None = None) -> LoadedModel:
    """Load the model that a workload names."""
    return load_shared(resolve_model(spec.model, relative_to), spec.dtype)


def choose_arms(spec: WorkloadSpec, asked_for: Sequence[tuple[str, Mapping[str, Any]]], where: str) -> list[Arm]:
    """Arms of the workload file, or those asked for (an arm of the file may be changed by name).

    Raises:
        DivtraceError: no arm is defined anywhere, or a name could not be a file name.
    """
    chosen = asked_for or [(name, {}) for name in spec.arms]
    if not chosen:
        raise DivtraceError(
            f"{where} defines no arms; add --arm NAME:key=value, for example --arm serial:max_active=1."
        )
    for name, changes in chosen:
        if name not in spec.arms and not changes:
            known = ", ".join(spec.arms) or "none"
            raise DivtraceError(
                f"{where} has no arm {name!r} (it has {known}); give a new arm settings: --arm {name}:max_active=1."
            )
        if not name or any(c in name for c in "/\\\0") or name.startswith("."):
            raise DivtraceError(f"arm name {name!r} cannot be a file name; use letters, digits and dashes.")
    names = [name for name, _ in chosen]
    if len(set(names)) != len(names):
        raise DivtraceError(f"arm {next(n for n in names if names.count(n) > 1)!r} is given twice; names are unique.")
    return [Arm(name, spec.arm_settings(name, changes, where)) for name, changes in chosen]


def record_arm(
    loaded: LoadedModel,
    spec: WorkloadSpec,
    arm: Arm,
    folder: Path,
    options: RecordOptions,
    on_step: StepCallback | None = None,
) -> ArmResult:
    """Run one arm and write `folder/<arm>.h5`."""
    path = folder / f"{arm.name}.h5"
    recorder = Recorder(
        path,
        level=options.level,
        top_k=options.top_k,
        workload=spec.model_dump(mode="json", exclude_defaults=True) | {"version": spec.version},
        overwrite=options.overwrite,
        audit_every=options.audit_every,
        tensors=options.tensors,
    )
    requests = build_requests(spec, loaded.tokenizer)
    completions, steps = run_recorded(loaded, arm.settings, requests, recorder, on_step=on_step)
    return ArmResult(arm, path, completions, steps)


def run_recorded(
    loaded: LoadedModel,
    settings: EngineSettings,
    requests: Sequence[Request],
    recorder: Recorder,
    overrides: tuple[SiteOverride, ...] = (),
    forced: ForcedTokens | None = None,
    pinned: Sequence[PinnedStep] | None = None,
    on_step: StepCallback | None = None,
) -> tuple[Mapping[str, Completion], int]:
    """Run requests to their end under a recorder; returns completions and the number of steps."""
    with Engine(loaded, settings, (recorder,), overrides, forced, pinned) as engine:
        for request in requests:
            engine.submit(request)
        while _step(engine):
            if on_step is not None:
                on_step(engine)
        return engine.completions, engine.step_number


def _step(engine: Engine) -> bool:
    """One step, to its end: a request that ended in it would else be told of without the step."""
    with interrupts_deferred():
        return engine.step()
