"""`divtrace doctor`: what this machine has, what it lacks, and the command that brings it."""

from __future__ import annotations

import importlib.util
import shlex
import sys

import click

from divtrace.commands.options import print_json

# Package to what needs it, and to the extra that brings it.
OPTIONAL = {
    "numba": ("the invariant policy on CPU", "invariant"),
    "pandas": ("Trace.to_pandas", "frames"),
    "pyarrow": ("Trace.to_arrow", "frames"),
    "plotly": ("figures in a notebook", "plot"),
    "fsspec": ("reading traces from URLs", "remote"),
}


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
def command(as_json: bool) -> None:
    """Show backend, versions, BLAS, what is invariant here, the model cache, and what is missing.

    \b
    Examples:
      divtrace doctor
      divtrace doctor --json
    """
    from divtrace.model_store import models_directory
    from engine.environment import describe_environment
    from engine.kernels import invariant

    environment = describe_environment()
    missing = {name: OPTIONAL[name] for name in OPTIONAL if importlib.util.find_spec(name) is None}
    cached = sorted(path.name for path in models_directory().glob("*.gguf"))
    if as_json:
        document = {"environment": environment, "missing": sorted(missing), "models": cached}
        print_json({"schema": "divtrace.doctor/1", "invariant_on_cpu": invariant.available(), **document})
        return
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items() if version)
    click.echo(f"device      {environment['device']}, {environment['processor']}")
    click.echo(f"system      {environment['system']}, Python {environment['python']}")
    click.echo(f"versions    {versions}")
    for blas in environment["blas"]:
        words = (blas.get("internal_api"), blas.get("version"), blas.get("architecture"))
        click.echo(f"threads     {' '.join(str(w) for w in words if w)}: {blas.get('num_threads')}")
    for name, value in environment["variables"].items():
        click.echo(f"variable    {name}={value}")
    policies = "gemv, invariant" if invariant.available() else "gemv"
    click.echo(f"same bits   at every row count: {policies}; tile:T where divtrace probe shows it")
    here = ", ".join(cached) if cached else "none yet, divtrace demo brings SmolLM2-135M"
    click.echo(f"models      {here}, in {models_directory()}")
    for name, (use, extra) in missing.items():
        # By this Python's pip: another one would put the package where divtrace does not look.
        remedy = f"{shlex.quote(sys.executable)} -m pip install 'divtrace[{extra}]'"
        click.echo(f"missing     {name}, for {use}: {remedy}")
