"""`divtrace record`: run a workload's arms and write a trace of each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from divtrace.api.arguments import LEAST_TOP_K, MOST_TOP_K
from divtrace.commands.arguments import complete_arm
from divtrace.commands.tensor_options import tensor_options, tensor_settings
from divtrace.trace.schema import Level


@click.command("record")
@click.argument("workload", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), required=True, help="Folder for the traces.")
@click.option(
    "--arm", "arms", multiple=True, metavar="NAME:KEY=VALUE,...", shell_complete=complete_arm,
    help="An arm to run instead of the file's.",
)  # fmt: skip
@click.option("--model", default=None, help="Another model than the workload's: a path, a hub id or 'smollm2'.")
@click.option("--level", type=click.Choice([level.value for level in Level]), default="kv", show_default=True)
@click.option(
    "--top-k", type=click.IntRange(LEAST_TOP_K, MOST_TOP_K), default=8, show_default=True,
    help="Logits kept per decision.",
)  # fmt: skip
@click.option(
    "--audit", type=click.IntRange(0), default=0, metavar="N",
    help="Every N steps, hold the K/V rows that are read against what was written.",
)  # fmt: skip
@tensor_options
@click.option("--kv-blocks", type=click.IntRange(1), default=None, help="Blocks in the K/V pool.")
@click.option("--kv-bytes", type=click.IntRange(1), default=None, help="The K/V pool by its size in bytes.")
@click.option("--deterministic", is_flag=True, help="Row-invariant kernels: invariant where it exists, else gemv.")
@click.option("--policy-file", type=click.Path(path_type=Path), default=None, help="Paths that divtrace tune wrote.")
@click.option("--force", is_flag=True, help="Overwrite complete traces too; unfinished ones are written anew anyway.")
def command(
    workload: Path,
    output: Path,
    arms: tuple[str, ...],
    model: str | None,
    level: str,
    top_k: int,
    audit: int,
    kv_blocks: int | None,
    kv_bytes: int | None,
    deterministic: bool,
    policy_file: Path | None,
    force: bool,
    **chosen_tensors: Any,
) -> None:
    """Run WORKLOAD once per arm; write OUTPUT/<arm>.h5.

    An arm is a set of engine settings; the arms of one workload should write the same text.

    \b
    Examples:
      divtrace record case.yaml -o runs
      divtrace record case.yaml -o runs --deterministic
      divtrace record case.yaml -o runs --arm a:max_active=1 --arm b:max_active=2
      divtrace record case.yaml -o forced --arm serial:policy=gemv --level logits
      divtrace record case.yaml -o whole --level tensors --tensor-steps 3-7
    """
    from divtrace.api.record import record
    from divtrace.commands.record_output import PrintedRecording

    record(
        workload,
        output,
        arms=arms or None,
        model=model,
        level=level,
        top_k=top_k,
        audit=audit,
        tensors=tensor_settings(**chosen_tensors),
        kv_blocks=kv_blocks,
        kv_bytes=kv_bytes,
        deterministic=deterministic,
        policy_file=policy_file,
        force=force,
        watcher=PrintedRecording(),
    )
