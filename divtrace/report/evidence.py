"""Pieces of the story that tables use too: the origin it is about, who joined, what crossed a threshold."""

from __future__ import annotations

from divtrace.origin.records import BatchSegment, Crossing, JoinedSegment, Origin
from divtrace.proof.records import ProofResult
from divtrace.render.sentence import described_side
from divtrace.render.text import counted, listed
from divtrace.report.page_text import short_text
from divtrace.verdict.records import BlameResult, Confidence

SPACE = "\u2423"

CONFIDENCE_BADGES = {
    Confidence.PROVEN: "proven by re-running, both ways",
    Confidence.SHOWN: "shown by the evidence",
    Confidence.SUSPECTED: "suspected, nothing was re-run",
    Confidence.NONE: "no confidence",
}


def origin_of(blame: BlameResult) -> Origin | None:
    """The origin that the story is about: the first one that a proof names, else the first one found."""
    origins = blame.origins
    if origins is None or not origins.origins:
        return None
    causes = cause_steps(blame.proof)
    return next((o for o in origins.origins if (o.step_a, o.step_b) in causes), origins.origins[0])


def cause_steps(proof: ProofResult | None) -> frozenset[tuple[int, int]]:
    """Steps (of A, of B) of the candidates that a proof names as the cause."""
    if proof is None:
        return frozenset()
    return frozenset((proof.candidates[i].step_a, proof.candidates[i].step_b) for i in proof.cause)


def who_joined(blame: BlameResult, origin: Origin) -> str:
    """`follower’s prefill of 49 rows`, `the first 28 of follower’s 122 prompt rows`, or an empty string."""
    run, _, batch = described_side(origin)
    prompts = {(r.id_b if run == "B" else r.id_a): r.prompt_tokens for r in blame.diff.requests}
    segments = {segment.request: segment for segment in batch.segments}
    joined = {segment for crossing in origin.crossings for segment in crossing.joined}
    in_order = sorted(joined, key=lambda segment: (segment.request, segment.kind, segment.rows))
    words = [_joined_words(s, segments.get(s.request), prompts.get(s.request)) for s in in_order]
    return listed(words) if words else ""


def _joined_words(joined: JoinedSegment, segment: BatchSegment | None, prompt_tokens: int | None) -> str:
    request = short_text(joined.request)
    is_whole = segment is None or prompt_tokens is None or joined.rows >= prompt_tokens
    if is_whole or segment is None or joined.kind != "prefill" or joined.rows != segment.rows:
        return f"{request}’s {joined.kind} of {counted(joined.rows, 'row')}"
    if segment.first_position == 0:
        return f"the first {joined.rows} of {request}’s {prompt_tokens} prompt rows"
    return f"{counted(joined.rows, 'row')} of {request}’s {prompt_tokens} prompt rows"


def main_crossing(origin: Origin) -> Crossing | None:
    """The crossing with the most sites."""
    return max(origin.crossings, key=lambda crossing: crossing.sites, default=None)


def crossing_sentence(crossing: Crossing) -> str:
    """`50 rows are over the threshold of 4, so 210 sites (qkv, mlp) took gemm instead of gemv`."""
    over_b = crossing.over == "B"
    rows, other = (crossing.rows_b, crossing.rows_a) if over_b else (crossing.rows_a, crossing.rows_b)
    usual, taken = (crossing.path_a, crossing.path_b) if over_b else (crossing.path_b, crossing.path_a)
    limit = crossing.limit
    why = f"{counted(rows, 'row')} instead of {other}"
    if limit is not None and rows > limit:
        why += f" are over the threshold of {limit}"
    classes = listed(site_class.value for site_class in crossing.site_classes)
    sites = counted(crossing.sites, "site")
    return f"{why}, so {sites} ({classes}) took {short_text(taken)} instead of {short_text(usual)}"


def quoted_text(text: str) -> str:
    """Text of a token between quotation marks, on one line; spaces at its ends are visible."""
    shown = short_text(text, 32).replace("\n", "\\n")
    inner = shown.strip(" ")
    before = len(shown) - len(shown.lstrip(" "))
    after = len(shown) - len(inner) - before
    return f"“{SPACE * before}{inner}{SPACE * after}”"


def sentence(text: str) -> str:
    """With a capital letter and one full stop."""
    return f"{text[:1].upper()}{text[1:]}".rstrip(".") + "." if text else ""


def signed(value: float | None, format_spec: str = ".6f") -> str:
    """A number with its sign, a true minus; a dash where there is none."""
    return "–" if value is None else f"{value:+{format_spec}}".replace("-", "−")
