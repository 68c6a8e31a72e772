"""Checks what a caller wants to be recorded: nothing that is asked for is left out without a word."""

from __future__ import annotations

from divtrace.errors import DivtraceError
from divtrace.recorder.tensors import TensorSettings
from divtrace.trace.schema import Level
from engine.workload import WorkloadSpec


def check_level_holds(level: Level, audit: int, tensors: TensorSettings | None) -> None:
    """Refuse a level that has no place for what is asked for beside it, and level `tensors` without a choice.

    Raises:
        DivtraceError: the trace would lack an audit or arrays that were asked for.
    """
    if audit and not level.includes(Level.KV):
        raise DivtraceError(f"an audit needs the hashes of level kv, and the level is {level}; record with --level kv.")
    if tensors is not None and not level.includes(Level.TENSORS):
        raise DivtraceError(
            f"arrays were chosen, but level {level} has no place for them; record with --level tensors."
        )
    if level.includes(Level.TENSORS) and (tensors is None or not tensors.keeps_something):
        raise DivtraceError(
            "level tensors keeps arrays of chosen steps, or of the last steps when something goes wrong; "
            "say which with --tensor-steps FIRST-LAST or --tensor-ring N (in Python: tensors=TensorSettings(...))."
        )
    if tensors is not None and tensors.gap_below is not None and not tensors.ring_steps:
        raise DivtraceError("a gap is a reason to write the ring out, and there is no ring; add --tensor-ring N.")


def check_tensor_requests(tensors: TensorSettings | None, spec: WorkloadSpec, where: str) -> None:
    """Refuse request ids that the workload does not have.

    Raises:
        DivtraceError: there is no such request.
    """
    known = [request.id for request in spec.requests]
    for request_id in () if tensors is None else tensors.request_ids:
        if request_id not in known:
            raise DivtraceError(f"{where} has no request {request_id!r}; it has {', '.join(known)}.")
