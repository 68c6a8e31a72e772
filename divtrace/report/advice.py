"""What to do about a verdict, in a line: `docs/verdicts.md` says more of each."""

from __future__ import annotations

from divtrace.render.text import listed
from divtrace.report.evidence import sentence
from divtrace.report.page_text import page_text
from divtrace.report.retry import Retry
from divtrace.verdict.records import BlameResult, Confidence, Nature, Verdict

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
    "If the text must be the same whatever the batch, use kernels whose result does not depend on how many rows are in "
    "the call (policy invariant or gemv)"
)
_NOT_EXACT = "That makes runs identical, which is not to say more exact"
_CHECKS = {"A against A": "run A repeats itself bit for bit", "B against B": "run B does too"}
_TO_PROVE = "only a re-run, where the model is at hand, tells a suspect from a cause"
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
    Verdict.SELECTION: "Look behind the logits: ties, sampler state, penalties, acceptance of drafts",
    Verdict.RECORDING_CHANGED_THE_RUN: "Record less (`--level logits`), and report this as a fault of the recorder",
    Verdict.NOT_DECIDABLE: "Record more evidence",
}


def what_next(blame: BlameResult, retry: Retry | None = None) -> str:
    """What somebody with this verdict does now; what stands between backticks is to be typed, as it is printed."""
    retry = retry or Retry()
    if blame.verdict in ROUNDING_VERDICTS and blame.nature is Nature.ROUNDING:
        same = f"{_SAME_TEXT}{_OF_ROUNDING[blame.verdict]}. {_NOT_EXACT}."
        return f"{same} {_to_check(retry)}"
    if blame.verdict in ROUNDING_VERDICTS and blame.nature is Nature.BUG:
        return "Look at the kernel that is named: it made numbers that are not finite, and rounding does not do that."
    asked = "; ".join(page_text(advice) for advice in blame.next_time)
    return sentence(asked or _other(blame.verdict, retry))


def what_was_checked(blame: BlameResult) -> str:
    """Where rounding is the answer: what was looked at and found right, and what nobody looked at."""
    if blame.verdict not in ROUNDING_VERDICTS or blame.nature is not Nature.ROUNDING:
        return ""
    held = [_CHECKS.get(control.name, page_text(control.name)) for control in blame.controls if control.holds]
    if blame.confidence is Confidence.PROVEN:
        held.append("these kernels change the outcome")
    return sentence(
        f"{listed(held)}. Not checked: other decisions, and whether model, cache and kernels are right elsewhere"
    )


def _to_check(retry: Retry) -> str:
    if not retry.record:
        return "To check it, record both runs again with `--deterministic` and compare: no difference may be left."
    return f"To check it: `{retry.record}`, and then `{retry.diff}` must find no difference."


def _other(verdict: Verdict, retry: Retry) -> str:
    if verdict is Verdict.STATE_CORRUPTION:
        packed = f" `divtrace bundle {retry.traces} -o case.zip` packs the case for somebody else" * bool(retry.traces)
        told = "Report it with the place that is named. A recording with `--audit 1` tells who changed a row"
        return f"{told}.{packed}" if packed else told
    if verdict in _OTHERS:
        return _OTHERS[verdict]
    return f"Run `divtrace blame {retry.traces}`: {_TO_PROVE}" if retry.traces else f"Prove it: {_TO_PROVE}"
