"""The probe: at which row counts this machine's kernels change a row's bits. Must not know traces or requests."""

from divtrace.probe.document import render_html
from divtrace.probe.request import LinearShape, ProbeRequest
from divtrace.probe.result import Findings, ProbeResult, TileProposal
from divtrace.probe.run import run_probe
from divtrace.probe.table import render_table

__all__ = [
    "Findings",
    "LinearShape",
    "ProbeRequest",
    "ProbeResult",
    "TileProposal",
    "render_html",
    "render_table",
    "run_probe",
]
