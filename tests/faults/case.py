"""One planted pair: how its two runs are made, and the truth that blame has to find."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from divtrace.origin.records import SiteClass
from divtrace.recorder.recorder import Recorder
from divtrace.trace.schema import Level
from divtrace.verdict.records import Verdict
from engine.errors import EngineError
from engine.model.load import LoadedModel
from engine.observer import Observer
from engine.request import Request
from engine.settings import EngineSettings
from tests.faults.build import Fault, FaultyEngine

MakeFault = Callable[[], Fault]


@dataclass(frozen=True)
class Arm:
    """One run: everything that decides it. `fault` None is the plain engine."""

    loaded: LoadedModel
    settings: EngineSettings
    requests: tuple[Request, ...]
    fault: MakeFault = Fault
    level: Level = Level.KV
    audit_every: int = 0


@dataclass(frozen=True, slots=True)
class Truth:
    """What was planted. None where the kind of fault has no such place.

    `request`, `step` and `position` are those of run B's first row (or decision) that the fault touched; `layer` is the
    first record that can differ (the number of layers for the logits); `causes` are steps of B: blame may name any of
    them and no other.
    """

    verdict: Verdict
    request: str | None = None
    step: int | None = None
    position: int | None = None
    layer: int | None = None
    site_class: SiteClass | None = None
    causes: tuple[int, ...] = ()


Oracle = Callable[["Pair"], Truth]


@dataclass(frozen=True)
class Case:
    """A kind of fault on one workload. `arms` draws the pair of a seed; `seeds` are tried until a token flips.

    `build` is the fault of the engine that replays: None where the fault struck the recorded run only.
    `flips` tells whether a flip is looked for; without one the state differs and that is to be explained.
    """

    kind: str
    name: str
    arms: Callable[[int], tuple[Arm, Arm]]
    oracle: Oracle
    build: MakeFault | None = None
    seeds: tuple[int, ...] = tuple(range(40))
    flips: bool = True
    request: str | None = None


@dataclass(frozen=True)
class Ran:
    """What a run left."""

    outputs: Mapping[str, tuple[int, ...]]
    fault: Fault
    error: str = ""


@dataclass(frozen=True)
class Pair:
    """Both recorded runs of a case."""

    case: Case
    seed: int
    a: Arm
    b: Arm
    ran_a: Ran
    ran_b: Ran
    path_a: Path
    path_b: Path
    extra: Mapping[str, object] = field(default_factory=dict)


def swapped(case: Case) -> Case:
    """The same pair the other way round: the reference run is the one with the fault."""

    def arms(seed: int) -> tuple[Arm, Arm]:
        a, b = case.arms(seed)
        return b, a

    return replace(case, name=f"{case.name} in A", arms=arms)


def run_arm(arm: Arm, observers: Sequence[Observer] = ()) -> Ran:
    """Run an arm to its end, or to the error that ends it."""
    fault, error = arm.fault(), ""
    outputs: dict[str, list[int]] = {request.id: [] for request in arm.requests}
    try:
        with FaultyEngine(fault, arm.loaded, arm.settings, observers) as engine:
            for request in arm.requests:
                engine.submit(request)
            while engine.step():
                pass
    except EngineError as raised:
        error = str(raised)
    outputs |= {state.id: state.output for state in engine.states.values()}
    outputs |= {name: list(done.tokens) for name, done in engine.completions.items()}
    return Ran({name: tuple(tokens) for name, tokens in outputs.items()}, fault, error)


def record(arm: Arm, path: Path) -> Ran:
    """Run an arm under the recorder."""
    recorder = Recorder(path, level=arm.level, overwrite=True, audit_every=arm.audit_every)
    return run_arm(arm, (recorder,))


def plant(case: Case, folder: Path) -> Pair:
    """Find a seed at which the case shows itself, and record its two runs.

    Raises:
        LookupError: no seed of the case shows what the case is about.
    """
    for seed in case.seeds:
        a, b = case.arms(seed)
        if not case.flips or _flips(case, a, b):
            break
    else:
        raise LookupError(f"{case.name}: no seed among {case.seeds} flips a token")
    path_a, path_b = folder / "a.h5", folder / "b.h5"
    return Pair(case, seed, a, b, record(a, path_a), record(b, path_b), path_a, path_b)


def _flips(case: Case, a: Arm, b: Arm) -> bool:
    left, right = run_arm(a), run_arm(b)
    names = [case.request] if case.request else list(left.outputs)
    return any(x != y for name in names for x, y in zip(left.outputs[name], right.outputs.get(name, ()), strict=False))
