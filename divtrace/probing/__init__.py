"""The probe: at which row counts this machine's kernels change a row's bits. Must not know traces or requests."""

from divtrace.probing.document import render_html
from divtrace.probing.request import LinearShape, ProbeRequest
from divtrace.probing.result import Findings, ProbeResult, TileProposal
from divtrace.probing.run import run_probe
from divtrace.probing.table import render_table

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
