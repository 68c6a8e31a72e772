"""What to do about a verdict, in a line: `docs/verdicts.md` says more of each."""

from __future__ import annotations

from divtrace.report.evidence import sentence
from divtrace.report.page_text import page_text
from divtrace.verdict.records import BlameResult, Nature, Verdict

ROUNDING_VERDICTS = frozenset(
    {
        Verdict.KERNEL_PATH,
        Verdict.ATTENTION_SPLIT,
        Verdict.CHUNK_BOUNDARY,
        Verdict.PREFIX_CACHE_REUSE,
        Verdict.PREEMPTION_RECOMPUTE,
    }
)
_SAME_TEXT = (
    "Nothing is to be mended in the model or the cache. If the text must be the same whatever the batch, use kernels "
    "that do not look at other rows: policy invariant or gemv"
)
_CHECK = (
    "To check it: `divtrace record WORKLOAD -o same --deterministic`, and `divtrace diff` of its traces must find no "
    "difference"
)
_TO_PROVE = "Run `divtrace blame` where the model is at hand: only a re-run tells a suspect from a cause"
_OF_ROUNDING = {
    Verdict.KERNEL_PATH: ", or serve one request at a time (max_active 1)",
    Verdict.ATTENTION_SPLIT: ", with one query a call (attention: row)",
    Verdict.CHUNK_BOUNDARY: ", or align the chunks of prompts (align_prefill_to_blocks)",
    Verdict.PREFIX_CACHE_REUSE: ", or switch the prefix cache off",
    Verdict.PREEMPTION_RECOMPUTE: ", or give it more K/V blocks, so that nobody is preempted",
}
_OTHERS = {
    Verdict.NONE_SEEN: "Nothing. If you expected a difference, record longer or more requests",
    Verdict.INPUTS_DIFFER: "Record both runs from one workload and with the same weights, then compare again",
    Verdict.NOT_REPRODUCIBLE: "Find out why a run does not repeat itself before you compare it with another",
    Verdict.STATE_CORRUPTION: (
        "Report it with the place that is named. `record --audit 1` tells who changed a row, and `divtrace bundle` "
        "packs the case for somebody else"
    ),
    Verdict.SELECTION: "Look behind the logits: ties, sampler state, penalties, acceptance of drafts",
    Verdict.RECORDING_CHANGED_THE_RUN: "Record less (`--level logits`), and report this as a fault of the recorder",
    Verdict.NOT_DECIDABLE: "Record more evidence",
}


def what_next(blame: BlameResult) -> str:
    """What somebody with this verdict does now; what stands between backticks is to be typed."""
    if blame.verdict in ROUNDING_VERDICTS and blame.nature is Nature.ROUNDING:
        return f"{_SAME_TEXT}{_OF_ROUNDING[blame.verdict]}. {_CHECK}."
    if blame.verdict in ROUNDING_VERDICTS and blame.nature is Nature.BUG:
        return "Look at the kernel that is named: it made numbers that are not finite, and rounding does not do that."
    asked = "; ".join(page_text(advice) for advice in blame.next_time)
    return sentence(asked or _OTHERS.get(blame.verdict, _TO_PROVE))
