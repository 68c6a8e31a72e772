"""Finds and loads the model that made a trace."""

from __future__ import annotations

from divtrace.errors import EvidenceError
from divtrace.recording import load_shared, resolve_model
from divtrace.trace.reader import Trace
from engine.errors import EngineError
from engine.model.load import LoadedModel


def load_model_of(trace: Trace, model: str | None = None) -> LoadedModel:
    """Load the model of a trace: the one given, else the workload's name for it, else where it was.

    Raises:
        EvidenceError: it is not to be found; says what to give.
    """
    recorded = dict(trace.header.settings.get("model", {}))
    workload = trace.header.workload or {}
    name = model or workload.get("model") or recorded.get("source")
    if not name:
        raise EvidenceError(f"{trace.path} does not say which model made it; give it with --model.")
    try:
        source = resolve_model(str(name))
        return load_shared(source, str(recorded.get("dtype", "float32")))
    except EngineError as error:
        raise EvidenceError(f"the model of {trace.path} cannot be loaded ({error}) Give it with --model.") from None
