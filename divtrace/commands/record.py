"""`divtrace record`: run a workload's arms and write a trace of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from divtrace.commands.options import parse_arm, step_progress
from divtrace.recording import Arm, RecordOptions, choose_arms, load_workload_model, record_arm, refuse_to_overwrite
from divtrace.trace.schema import Level
from engine.kernels import invariant
from engine.kernels.invariant import cuda
from engine.kernels.linear import on_cpu
from engine.kv.blocks import blocks_for_bytes
from engine.model.load import LoadedModel
from engine.tune.policy_file import read_policy
from engine.workload import WorkloadSpec, read_workload


@click.command("record")
@click.argument("workload", type=click.Path(path_type=Path))
@click.option("-o", "--output", "folder", type=click.Path(path_type=Path), required=True, help="Folder for the traces.")
@click.option("--arm", "arms", multiple=True, metavar="NAME:KEY=VALUE,...", help="An arm to run instead of the file's.")
@click.option("--model", default=None, help="Another model than the workload's: a path, a hub id or 'smollm2'.")
@click.option("--level", type=click.Choice([level.value for level in Level]), default="kv", show_default=True)
@click.option("--top-k", type=click.IntRange(2, 1024), default=8, show_default=True, help="Logits kept per decision.")
@click.option(
    "--audit",
    "audit_every",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Every N steps, hold the K/V rows that are read against what was written.",
)
@click.option("--kv-blocks", type=click.IntRange(1), default=None, help="Blocks in the K/V pool.")
@click.option("--kv-bytes", type=click.IntRange(1), default=None, help="The K/V pool by its size in bytes.")
@click.option("--deterministic", is_flag=True, help="Row-invariant kernels: invariant where it exists, else gemv.")
@click.option("--policy-file", type=click.Path(path_type=Path), default=None, help="Paths that divtrace tune wrote.")
@click.option("--force", is_flag=True, help="Overwrite traces that exist.")
def command(
    workload: Path,
    folder: Path,
    arms: tuple[str, ...],
    model: str | None,
    level: str,
    top_k: int,
    audit_every: int,
    kv_blocks: int | None,
    kv_bytes: int | None,
    deterministic: bool,
    policy_file: Path | None,
    force: bool,
) -> None:
    """Run WORKLOAD once per arm; write FOLDER/<arm>.h5.

    \b
    divtrace record case.yaml -o runs
    divtrace record case.yaml -o runs --arm serial:max_active=1 --arm batched:max_active=2
    divtrace record case.yaml -o runs --arm a:policy=gemv --arm b:policy=gemv,token_budget=32
    divtrace record case.yaml -o runs --deterministic
    """
    spec = read_workload(workload)
    if model is not None:
        spec = spec.model_copy(update={"model": model})
    spec = _with_policy(spec, deterministic, policy_file)
    chosen = choose_arms(spec, [parse_arm(arm) for arm in arms], str(workload))
    folder.mkdir(parents=True, exist_ok=True)
    options = RecordOptions(Level(level), top_k, force, audit_every)
    refuse_to_overwrite(chosen, folder, options)
    loaded = load_workload_model(spec, workload.parent)
    if kv_blocks is not None or kv_bytes is not None or audit_every:
        chosen = [_with_memory(arm, loaded, kv_blocks, kv_bytes, audit_every) for arm in chosen]
    for arm in chosen:
        with step_progress(f"arm {arm.name}") as advance:
            result = record_arm(loaded, spec, arm, folder, options, advance)
        tokens = sum(len(completion.tokens) for completion in result.completions.values())
        refused = [c for c in result.completions.values() if c.finish_reason.value == "refused"]
        click.echo(f"{result.path}: {len(result.completions)} requests, {tokens} tokens, {result.steps} steps")
        for completion in refused:
            click.echo(f"  refused: {completion.detail}", err=True)


def _with_policy(spec: WorkloadSpec, deterministic: bool, policy_file: Path | None) -> WorkloadSpec:
    """The workload with its policy replaced for every arm, where a flag asks for it."""
    if deterministic and policy_file is not None:
        raise click.UsageError("--deterministic and --policy-file choose different kernels; give one of them.")
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


def _with_memory(arm: Arm, loaded: LoadedModel, kv_blocks: int | None, kv_bytes: int | None, audit_every: int) -> Arm:
    """The arm with the pool's size and the ownership check of its blocks as the flags ask for."""
    if kv_blocks is not None and kv_bytes is not None:
        raise click.UsageError("--kv-blocks and --kv-bytes both size the pool; give one of them.")
    changes: dict[str, Any] = {"audit_every": audit_every or arm.settings.audit_every}
    if kv_bytes is not None:
        shape = (loaded.layers, loaded.kv_heads, loaded.head_size, loaded.dtype)
        kv_blocks = blocks_for_bytes(kv_bytes, *shape, arm.settings.block_size)
    if kv_blocks is not None:
        changes["kv_blocks"] = kv_blocks
    return Arm(arm.name, arm.settings.model_copy(update=changes))
