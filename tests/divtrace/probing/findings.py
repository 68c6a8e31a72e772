"""Findings as a GPU and a CPU gave them, with few row counts, to look at their layout."""

from __future__ import annotations

from divtrace.probing.result import Findings, Machine, ProbeResult

COUNTS = (1, 2, 3, 4, 7, 8, 9, 16, 32)


def findings(operation: str, shape: str, implementation: str = "mlx", **found: object) -> Findings:
    """A kernel that never changes a bit, but for what is given."""
    values: dict[str, object] = {
        "threads": 0,
        "row_counts": COUNTS,
        "changed": (),
        "index_dependent": (),
        "neighbour_dependent": (),
        "padding_dependent": (),
        "thread_dependent": None,
        "unrepeatable": (),
        "classes": (COUNTS,),
        "distinct_results": 1,
        "most_ulps": 0.0,
        "largest_difference": 0.0,
        "time_s": {count: count * 1e-5 for count in COUNTS},
    }
    return Findings(
        operation=operation, implementation=implementation, shape=shape, dtype="float32", **{**values, **found}
    )


def gemm(threads: int) -> Findings:
    """numpy's GEMM: every kind of dependence but company."""
    return findings(
        "linear",
        "576x49152 q8/32",
        "numpy gemm",
        threads=threads,
        changed=COUNTS[1:],
        index_dependent=(3, 7, 9, 16, 32),
        padding_dependent=(1, 2, 3, 7, 9),
        thread_dependent=(4, 9) if threads > 1 else None,
        classes=((1,), (2, 3, 4), (7, 8), (9, 16, 32)),
        most_ulps=10.0,
    )


CAUSAL = "9/3 heads of 64, 256 keys, causal"
CUT = findings(
    "gather_qmm",
    "576x1536 q4/64, 4 experts",
    row_counts=(1, 2),
    classes=((1,), (2,)),
    changed=(2,),
    time_s={1: 0.3, 2: 0.7},
    skipped=COUNTS[2:],
)
RESULT = ProbeResult(
    machine=Machine("A processor", 16, "cuda", "sm_90", "0.32.4", "2.5.2", "openblas 0.3.31", "0.68.1"),
    source="random weights",
    seed=0,
    elapsed_s=31.6,
    findings=(
        findings("rms_norm", "576"),
        findings("attention", CAUSAL),
        findings("matmul", "576x1536", changed=(2, 9, 32), classes=((1, 3, 4, 7, 8, 16), (2, 9, 32)), most_ulps=39.5),
        gemm(1),
        gemm(16),
        CUT,
    ),
    tiles=(),
)
