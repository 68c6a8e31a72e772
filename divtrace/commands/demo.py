"""`divtrace demo`: the whole story on a real model, each step shown as the command that anybody could type."""

from __future__ import annotations

import importlib.util
import shlex
import time
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path

import click

from divtrace.divergence.records import Outcome
from divtrace.errors import DivtraceError

ARMS = ("serial", "batched")


@click.command("demo")
@click.option(
    "-o", "--output", "folder", type=click.Path(path_type=Path), default=Path("demo-out"), show_default=True,
    help="Folder for the traces.",
)  # fmt: skip
@click.option("--no-proof", is_flag=True, help="Leave the counterfactual re-runs out.")
def command(folder: Path, no_proof: bool) -> int:
    """Record two runs of one workload on SmolLM2-135M, find where they split, and prove why.

    \b
    Examples:
      divtrace demo
      divtrace demo --no-proof
      divtrace demo -o demo-out && divtrace show demo-out/handoff-1/batched.h5
    """
    from divtrace.model_store import fetch_smollm2

    started = time.perf_counter()
    _say(
        "An anchor request decodes. A follower is submitted after the anchor's first token. Arm "
        "'serial' admits one request "
        "at a time, arm 'batched' both. Up to 4 rows go one by one through GEMV, more rows go together through GEMM."
    )
    model = fetch_smollm2()
    _say(f"Model: SmolLM2-135M-Instruct Q4_1, {model.stat().st_size / 1e6:.0f} MB, checked and cached.")
    workload = _record_until_one_splits(folder)
    if workload is None:
        _say(
            "None of the workloads splits on this machine: its GEMV and GEMM agree too well, or its "
            "near-ties lie elsewhere. "
            "python -m fixtures.search_workloads finds others."
        )
        return 2
    traces = _traces(folder / workload.stem)
    _run("diff", *traces)
    _run("blame", *traces, *(["--no-proof"] if no_proof else ["--reference", "--joint-trials", 0]))
    _say("The control: the same pair with GEMV forced everywhere. Nothing may differ, not in one bit.")
    control = folder / f"{workload.stem}-gemv"
    arms = [f"{arm}:policy=gemv" for arm in ARMS]
    _run("record", workload, "-o", control, *(part for arm in arms for part in ("--arm", arm)), "--force")
    status = _run("diff", *_traces(control))
    _say(_acceptance("Draft acceptance, serial against batched, under threshold:4", *traces))
    _say(_acceptance("Draft acceptance, serial against batched, under forced GEMV", *_traces(control)))
    _say(f"The story took {time.perf_counter() - started:.0f} s. Traces lie in {folder}.")
    return status


def _record_until_one_splits(folder: Path) -> Path | None:
    from divtrace.api.diff import diff

    for number, workload in enumerate(_workloads()):
        if number:
            _say(
                "These runs do not split on this machine (another processor rounds differently); trying the next "
                "workload."
            )
        target = folder / workload.stem
        _run("record", workload, "-o", target, "--force")
        result = diff(*_traces(target))
        if result.outcome is Outcome.TOKENS:
            return workload
    return None


def _acceptance(label: str, a: Path, b: Path) -> str:
    from divtrace.api.diff import diff

    parts = []
    for request in diff(a, b).requests:
        counts = [f"{d.accepted_tokens}/{d.proposed_tokens}" for d in (request.drafts_a, request.drafts_b)]
        parts.append(f"{request.id_a} {counts[0]} against {counts[1]}")
    return f"{label}: {', '.join(parts)}."


def _traces(folder: Path) -> tuple[Path, Path]:
    first, second = (folder / f"{arm}.h5" for arm in ARMS)
    return first, second


def _workloads() -> Iterator[Path]:
    if importlib.util.find_spec("fixtures") is None:
        raise DivtraceError("the demo's workloads are not installed; run it from a checkout or reinstall divtrace.")
    with resources.as_file(resources.files("fixtures") / "workloads") as found:
        workloads = sorted(found.glob("handoff-*.yaml"))
        if not workloads:
            raise DivtraceError(f"{found} holds no workload; reinstall divtrace.")
        here = Path.cwd()
        for workload in workloads:
            yield workload.relative_to(here) if workload.is_relative_to(here) else workload


def _say(text: str) -> None:
    click.echo(click.style(click.wrap_text(text, 80), dim=True) + "\n")


def _run(name: str, *arguments: object) -> int:
    """Print the command as one would type it, run it in this process, and print what it prints."""
    from divtrace.commands.main import run

    words: Sequence[str] = [name, *map(str, arguments)]
    shown = [word for word in words if word != "--force"]
    click.echo(click.style(f"$ divtrace {shlex.join(shown)}", bold=True))
    status = run(words)
    click.echo("")
    if status not in (0, 1):
        raise click.exceptions.Exit(status)
    return status
