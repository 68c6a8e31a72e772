"""The overview of a run: what it was, requests, steps; and the same as JSON."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType

from divtrace.show.memory import run_memory
from divtrace.show.render_requests import requests_json, show_requests
from divtrace.show.render_steps import show_steps, steps_json
from divtrace.show.safe_text import plain
from divtrace.show.tables import facts_table
from divtrace.trace.reader import Trace

SCHEMA = "divtrace.show.run/1"
_TABLE_LINES = 24
_SETTINGS = ("policy", "attention", "max_active", "token_budget", "admission")


def show_run(trace: Trace, with_steps: bool = True) -> RenderableType:
    """Header facts, the first requests and the first steps."""
    parts: list[RenderableType] = [plain(trace.path, "bold"), facts_table(run_facts(trace)), ""]
    parts.append(show_requests(trace, _TABLE_LINES))
    if with_steps:
        parts += ["", show_steps(trace, limit=_TABLE_LINES)]
    return Group(*parts)


def run_json(trace: Trace) -> dict[str, Any]:
    """Header, requests and steps as plain values."""
    header = trace.header
    return {
        "schema": SCHEMA,
        "trace": trace.path,
        "ending": trace.ending(),
        "level": str(header.level),
        "created": header.created,
        "layers": header.layers,
        "vocabulary_size": header.vocabulary_size,
        "weights_hash": header.weights_hash,
        "settings": dict(header.settings),
        "environment": dict(header.environment),
        "requests": requests_json(trace)["requests"],
        "steps": steps_json(trace)["steps"],
    }


def run_facts(trace: Trace) -> list[tuple[str, str]]:
    header = trace.header
    model = header.settings.get("model")
    model = model if isinstance(model, dict) else {}
    names = [str(model.get(name)) for name in ("architecture", "quantization", "dtype") if model.get(name)]
    versions = header.environment.get("versions")
    versions = versions if isinstance(versions, dict) else {}
    engine = [f"{name} {versions[name]}" for name in ("mlx", "mlx-lm") if versions.get(name)]
    settings = [f"{name} {header.settings[name]}" for name in _SETTINGS if header.settings.get(name) is not None]
    device = [
        str(header.environment[name]) for name in ("device", "processor", "backend") if header.environment.get(name)
    ]
    facts = [
        ("run", f"{trace.ending()}; recorded {header.created} at level {header.level}"),
        ("model", ", ".join([*names, f"{header.layers} layers"])),
        ("made with", ", ".join([*engine, *device])),
        ("settings", ", ".join(settings)),
        ("K/V memory", run_memory(trace)),
    ]
    return [(name, value) for name, value in facts if value]
