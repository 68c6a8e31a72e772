"""`divtrace.record`: a workload run once per arm, with a trace of each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from divtrace.api.arguments import LEAST_TOP_K, MOST_TOP_K, whole_number
from divtrace.api.arms import Arms, arms_asked_for
from divtrace.api.evidence_choice import check_level_holds, check_tensor_requests
from divtrace.api.sources import foreseen_errors
from divtrace.errors import DivtraceError
from divtrace.recorder.targets import Replaced, unfinished_targets
from divtrace.recorder.tensors import TensorSettings
from divtrace.recording import (
    Arm,
    ArmResult,
    RecordOptions,
    StepCallback,
    choose_arms,
    load_workload_model,
    record_arm,
)
from divtrace.trace.schema import Level
from engine.kernels import invariant
from engine.kernels.invariant import cuda
from engine.kernels.linear import on_cpu
from engine.kv.blocks import blocks_for_bytes
from engine.model.load import LoadedModel
from engine.tune.policy_file import read_policy
from engine.workload import WorkloadSpec, parse_workload, read_workload


class RecordWatcher:
    """Hears how a recording goes on. Override what you need; by default only a replaced trace is warned of."""

    def replacing(self, replaced: Replaced) -> None:
        """An unfinished trace is about to be written anew."""
        warnings.warn(str(replaced), stacklevel=2)

    @contextmanager
    def running(self, arm: Arm) -> Iterator[StepCallback | None]:
        """Entered while an arm runs; what it yields is called with the engine after every step."""
        del arm
        yield None

    def finished(self, result: ArmResult) -> None:
        """An arm has ended and its trace is complete."""


@foreseen_errors()
def record(
    workload: str | os.PathLike[str] | Mapping[str, Any],
    output: str | os.PathLike[str],
    *,
    arms: Arms | None = None,
    model: str | None = None,
    level: Level | str = Level.KV,
    top_k: int = 8,
    audit: int = 0,
    tensors: TensorSettings | None = None,
    kv_blocks: int | None = None,
    kv_bytes: int | None = None,
    deterministic: bool = False,
    policy_file: str | os.PathLike[str] | None = None,
    force: bool = False,
    watcher: RecordWatcher | None = None,
) -> dict[str, ArmResult]:
    """Run a workload once per arm and write `output/<arm>.h5` for each.

    Args:
        workload: path of a workload file, or its content as a mapping (paths in it are then relative to the
            current folder).
        output: folder for the traces; made where it is missing.
        arms: arms to run instead of the workload's: `{"serial": {"max_active": 1}}`, or texts as the command takes
            them, `["serial:max_active=1"]`. An arm of the workload may be changed by its name.
        model: another model than the workload's: a path, a hub id or `smollm2`.
        level: what a trace holds: tokens, logits, kv or tensors.
        top_k: logits kept per decision.
        audit: every so many steps, hold the K/V rows that are read against what was written; 0 never.
        tensors: which whole arrays level `tensors` keeps.
        kv_blocks: blocks in the K/V pool.
        kv_bytes: the K/V pool by its size in bytes instead.
        deterministic: row-invariant kernels: `invariant` where it exists, else `gemv`.
        policy_file: paths that `divtrace tune` wrote.
        force: overwrite complete traces; unfinished ones are written anew in any case.
        watcher: hears about steps and arms.

    Returns:
        By arm name, in order: the trace's path, completions by request id, and the number of steps. A result can be
        given to `open_trace`, `diff` and `blame` as it is.

    Raises:
        DivtraceError: the workload or an option makes no sense, or a complete trace would be overwritten.
        TraceError: a trace cannot be written.
    """
    watcher = watcher or RecordWatcher()
    options = RecordOptions(_level(level), top_k, force, audit, tensors)
    _check_numbers(top_k, audit, kv_blocks, kv_bytes)
    check_level_holds(options.level, audit, tensors)
    spec, where, folder_of_model = _read(workload)
    check_tensor_requests(tensors, spec, where)
    if model is not None:
        spec = spec.model_copy(update={"model": model})
    spec = _with_policy(spec, deterministic, None if policy_file is None else Path(policy_file))
    chosen = choose_arms(spec, arms_asked_for(arms), where)
    folder = Path(output)
    replaced = unfinished_targets([folder / f"{arm.name}.h5" for arm in chosen], force)
    folder.mkdir(parents=True, exist_ok=True)
    loaded = load_workload_model(spec, folder_of_model)
    chosen = [_with_memory(arm, loaded, kv_blocks, kv_bytes, audit) for arm in chosen]
    for notice in replaced:
        watcher.replacing(notice)
    unfinished = {notice.path for notice in replaced}
    results = {}
    for arm in chosen:
        overwrite = force or folder / f"{arm.name}.h5" in unfinished
        own = replace(options, overwrite=overwrite)
        with watcher.running(arm) as on_step:
            results[arm.name] = record_arm(loaded, spec, arm, folder, own, on_step)
        watcher.finished(results[arm.name])
    return results


def _level(level: Level | str) -> Level:
    try:
        return Level(level)
    except ValueError:
        raise DivtraceError(f"level is {level!r}; give one of {', '.join(Level)}.") from None


def _check_numbers(top_k: int, audit: int, kv_blocks: int | None, kv_bytes: int | None) -> None:
    whole_number("top_k", top_k, LEAST_TOP_K, MOST_TOP_K)
    whole_number("audit", audit, 0)
    if kv_blocks is not None and kv_bytes is not None:
        raise DivtraceError("--kv-blocks and --kv-bytes both size the pool; give one of them.")
    for name, value in (("kv_blocks", kv_blocks), ("kv_bytes", kv_bytes)):
        if value is not None:
            whole_number(name, value, 1)


def _read(workload: str | os.PathLike[str] | Mapping[str, Any]) -> tuple[WorkloadSpec, str, Path | None]:
    """The workload, what to call it in errors, and the folder that its model may be relative to."""
    if isinstance(workload, Mapping):
        return parse_workload(dict(workload), "the given workload"), "the given workload", None
    if not isinstance(workload, str | os.PathLike):
        raise DivtraceError(f"{workload!r} is no workload; give the path of a workload file, or its content as a dict.")
    path = Path(workload)
    return read_workload(path), str(path), path.parent


def _with_policy(spec: WorkloadSpec, deterministic: bool, policy_file: Path | None) -> WorkloadSpec:
    """The workload with its policy replaced for every arm, where it is asked for."""
    if deterministic and policy_file is not None:
        raise DivtraceError("--deterministic and --policy-file choose different kernels; give one of them.")
    if deterministic:
        here = invariant.available() if on_cpu() else cuda.available()
        changes: dict[str, Any] = {"policy": "invariant" if here else "gemv"}
    elif policy_file is not None:
        shapes = read_policy(policy_file).shapes.items()
        changes = {"policy": "auto", "tuned": {name: [[r.max_rows, r.path] for r in own] for name, own in shapes}}
    else:
        return spec
    arms = {name: {**arm, **changes} for name, arm in spec.arms.items()}
    return spec.model_copy(update={"settings": {**spec.settings, **changes}, "arms": arms})


def _with_memory(arm: Arm, loaded: LoadedModel, kv_blocks: int | None, kv_bytes: int | None, audit: int) -> Arm:
    """The arm with the pool's size and the ownership check of its blocks as asked for."""
    changes: dict[str, Any] = {"audit_every": audit} if audit else {}
    if kv_bytes is not None:
        shape = (loaded.layers, loaded.kv_heads, loaded.head_size, loaded.dtype)
        kv_blocks = blocks_for_bytes(kv_bytes, *shape, arm.settings.block_size)
    if kv_blocks is not None:
        changes["kv_blocks"] = kv_blocks
    return Arm(arm.name, arm.settings.model_copy(update=changes)) if changes else arm
