"""Find the first token at which two runs of a language model differ, and the earlier batch that caused it.

    runs = divtrace.record("case.yaml", "runs")
    divtrace.diff(runs["serial"], runs["batched"]).plot()
    divtrace.blame(runs["serial"], runs["batched"]).verdict

Everything is loaded when it is first used: importing the package loads neither MLX nor h5py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from divtrace.errors import DivtraceError, EvidenceError, TraceError

if TYPE_CHECKING:
    from divtrace.api.blame import blame
    from divtrace.api.diff import diff
    from divtrace.api.probe import probe
    from divtrace.api.record import RecordWatcher, record
    from divtrace.divergence.records import DiffResult
    from divtrace.probing.result import ProbeResult
    from divtrace.recorder.tensors import TensorSettings
    from divtrace.recording import ArmResult
    from divtrace.trace.reader import Trace, open_trace
    from divtrace.verdict.records import BlameResult

__version__ = "0.1.0"

__all__ = [
    "ArmResult",
    "BlameResult",
    "DiffResult",
    "DivtraceError",
    "EvidenceError",
    "ProbeResult",
    "RecordWatcher",
    "TensorSettings",
    "Trace",
    "TraceError",
    "__version__",
    "blame",
    "diff",
    "open_trace",
    "probe",
    "record",
]

_HOMES = {
    "ArmResult": "divtrace.recording",
    "BlameResult": "divtrace.verdict.records",
    "DiffResult": "divtrace.divergence.records",
    "ProbeResult": "divtrace.probing.result",
    "RecordWatcher": "divtrace.api.record",
    "TensorSettings": "divtrace.recorder.tensors",
    "Trace": "divtrace.trace.reader",
    "blame": "divtrace.api.blame",
    "diff": "divtrace.api.diff",
    "open_trace": "divtrace.trace.reader",
    "probe": "divtrace.api.probe",
    "record": "divtrace.api.record",
}

if not TYPE_CHECKING:  # a type checker takes the imports above, and so still knows which names do not exist

    def __getattr__(name: str) -> object:
        """Load a name on first use."""
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return globals()[name]


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
