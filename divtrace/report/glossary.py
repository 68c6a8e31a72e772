"""The words of a report, each in one line, and only those that this report uses."""

from __future__ import annotations

from divtrace.report.model import Report

_STORY = (
    ("Split (or flip)", "the first token that differs between the runs."),
    ("Origin", "a step whose inputs are equal, bit for bit, and whose results are not: where a difference begins."),
    ("Carrier", "a later row that was computed from differing rows and hands the difference on."),
    ("Drift", "how far a number moved from run A to run B: of a logit, or of K/V."),
)
_GAP_DRIFT = (
    (
        "Gap drift",
        "the gap afterwards (in run B, or in a re-run) minus the gap before. Below zero: the rival came closer. Curves "
        "show its size alone.",
    ),
)
_RUN = (
    (
        "Row",
        "the computation of one token position. Its K and V (keys and values) are kept, and later tokens read them.",
    ),
    ("Logit", "the model’s score of a candidate token; the largest one is written."),
    (
        "Gap",
        "the logit of the token that a run wrote minus that of its rival (the other run’s token, else the second "
        "best). Small: a near tie. Below zero: the rival is written.",
    ),
)
_CALLS = (
    ("Site", "one place in the model that calls a kernel, such as a projection of a layer. Head: the last one."),
    ("Kernel", "the routine that computes a site. Each adds up in its own order, so their last bits differ."),
)
_KINDS = {
    "prefill": ("Prefill", "computing the rows of a prompt, many at once."),
    "decode": ("Decode", "computing one row, to write the next token."),
    "verify": ("Verify", "computing several guessed tokens at once, to keep those that the model itself would write."),
    "recompute": ("Recompute", "computing rows again that were given up."),
}
_KERNELS = {
    "gemv": ("gemv", "kernel for one row at a time."),
    "gemm-f16-operands": ("gemm-f16-operands", "kernel for many rows together, its inputs rounded to 16 bits."),
    "gemm-f32": ("gemm-f32", "kernel for many rows together."),
    "invariant": ("invariant", "kernel whose results for a row do not depend on other rows."),
    "native": ("native", "whatever kernel the library chooses by itself."),
}


def glossary(report: Report) -> tuple[tuple[str, str], ...]:
    """Words and their meanings, in the order in which a reader meets them."""
    kinds = {run.kinds[kind] for run in report.runs for kind in set(run.bars.kind)}
    kernels = {group.path for run in report.runs for plan in run.plans for group in plan.groups}
    return (
        *(_STORY if report.focus is not None else ()),
        *_RUN,
        *(_GAP_DRIFT if report.focus is not None else ()),
        *_CALLS,
        *(words for kind, words in _KINDS.items() if kind in kinds),
        *(words for kernel, words in _KERNELS.items() if kernel in kernels),
    )
