"""`divtrace doctor`: what this machine has, what it lacks, and the command that brings it."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from textwrap import wrap

import click

from divtrace.commands.options import print_json, stdout_console

# Package to what needs it, and to the extra that brings it.
INDENT = " " * 12
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
    _fact("device", f"{environment['device']}, {environment['processor']}")
    _fact("system", f"{environment['system']}, Python {environment['python']}")
    _fact("versions", versions)
    for blas in environment["blas"]:
        words = (blas.get("internal_api"), blas.get("version"), blas.get("architecture"))
        _fact("threads", f"{' '.join(str(w) for w in words if w)}: {blas.get('num_threads')}")
    for name, value in environment["variables"].items():
        _fact("variable", f"{name}={value}")
    policies = "gemv, invariant" if invariant.available() else "gemv"
    _fact("same bits", f"at every row count: {policies}; tile:T where divtrace probe shows it")
    here = ", ".join(cached) if cached else "none yet, divtrace demo brings SmolLM2-135M"
    _fact("models", f"{here}, in {models_directory()}")
    for name, (use, extra) in missing.items():
        # By this Python's pip: another one would put the package where divtrace does not look.
        _fact("missing", f"{name}, for {use}:")
        click.echo(f"{INDENT}{shlex.quote(sys.executable)} -m pip install 'divtrace[{extra}]'")


def _fact(name: str, value: str) -> None:
    """A name and its value in the width there is; a path or a command is never cut."""
    width = max(stdout_console().width, 2 * len(INDENT))
    lines = wrap(
        value, width, initial_indent=INDENT, subsequent_indent=INDENT, break_long_words=False, break_on_hyphens=False
    )
    first, *more = lines or [INDENT]
    click.echo("\n".join([name.ljust(len(INDENT)) + first[len(INDENT) :], *more]))
