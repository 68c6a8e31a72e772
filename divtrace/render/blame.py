"""The walk's result for a terminal: one sentence, then the evidence behind it."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from divtrace.origin.records import Origin, OriginKind, OriginResult, SiteComparison
from divtrace.render.parts import flip_words, heading, line, logits_table
from divtrace.render.sentence import batch_words, blame_sentence, crossing_words, finished_words
from divtrace.render.text import counted, drift, listed, name, positions

MOST_ORIGINS = 3
MOST_SUSPECTS = 6
MOST_FAULTS = 6

__all__ = ["blame_sentence", "render_blame"]


def render_blame(result: OriginResult) -> RenderableType:
    """The sentence, the decision, every origin (at most five here), carriers, and what is missing."""
    return Group(Text(blame_sentence(result), style="bold"), Text(), render_evidence(result))


def render_evidence(result: OriginResult) -> RenderableType:
    """The same without the sentence."""
    parts: list[RenderableType] = [*_decision(result)]
    for number, origin in enumerate(result.origins[:MOST_ORIGINS], start=1):
        parts.extend((Text(), heading(_title(number, origin, len(result.origins))), *_origin(origin)))
    if len(result.origins) > MOST_ORIGINS:
        parts.extend((Text(), Text(f"{len(result.origins) - MOST_ORIGINS} more origins; --json lists them all.")))
    parts.extend((Text(), *_spread(result)))
    return Group(*parts)


def _decision(result: OriginResult) -> Iterator[RenderableType]:
    partner = "" if result.request_a == result.request_b else f" (B: {name(result.request_b)})"
    yield heading(f"Decision at position {result.position} of {name(result.request_a)}{partner}")
    yield line("step", f"{result.step_a} of A ({name(result.run_a)}), {result.step_b} of B ({name(result.run_b)})")
    if result.divergence is not None:
        if result.divergence.top_a:
            yield logits_table(result.divergence)
        yield line("flip", flip_words(result.divergence.flip))
    elif result.logits_differ is not None:
        yield line("logits", "differ" if result.logits_differ else "equal in every bit")
    if result.rows_read:
        yield line("read", f"{counted(result.rows_read, 'KV row')}, of which {result.differing_rows:,} differ")


def _title(number: int, origin: Origin, total: int) -> str:
    which = "Origin" if total == 1 else f"Origin {number} of {total}"
    return f"{which}: {origin.kind.value}, step {origin.step_a} of A and {origin.step_b} of B"


def _origin(origin: Origin) -> Iterator[RenderableType]:
    yield line("batch A", batch_words(origin.batch_a))
    yield line("batch B", batch_words(origin.batch_b))
    if origin.request_a != origin.request_b:
        yield line("made by", f"{name(origin.request_a)} in A, {name(origin.request_b)} in B")
    if origin.kind is not OriginKind.SELECTION:
        yield line("differs", _difference(origin))
    for crossing in origin.crossings:
        yield line("crossing", crossing_words(crossing))
    if origin.suspects:
        yield line("sites", listed((_suspect(suspect, origin) for suspect in origin.suspects), MOST_SUSPECTS))
    elif origin.site_classes:
        yield line("lies in", listed(site_class.value for site_class in origin.site_classes))
    if origin.drift is not None:
        yield line("drift", _drift(origin))
    if origin.circumstances:
        yield line("seen", listed(circumstance.value for circumstance in origin.circumstances))
    for fault in origin.faults[:MOST_FAULTS]:
        found = f"{name(fault.expected)} expected, {name(fault.found)} found"
        yield line("fault", f"run {fault.run}, position {fault.position}: {fault.kind}, {found}")


def _suspect(suspect: SiteComparison, origin: Origin) -> str:
    changes = {
        "path": f"{suspect.path_a} → {suspect.path_b}",
        "rows": f"{suspect.path_a}, {suspect.rows_a} → {suspect.rows_b} rows",
        "place": f"{suspect.path_a}, row {origin.packed_row_a} → {origin.packed_row_b} of the batch",
    }
    return f"{name(suspect.site)} ({name(changes[suspect.changed])})"


def _difference(origin: Origin) -> str:
    before = f"{origin.steps_before_a} steps before the decision in A, {origin.steps_before_b} in B"
    if origin.tensor == "logits":
        return f"logits of {positions(origin.positions)}, all KV rows read are equal; {before}"
    tensor = "K and V" if origin.tensor == "both" else "K" if origin.tensor == "key" else "V"
    return f"{tensor} of layer {origin.layer}, {positions(origin.positions)}; {before}"


def _drift(origin: Origin) -> str:
    if origin.not_finite:
        return f"NaN or Inf in run {' and '.join(origin.not_finite)}"
    if origin.drift is None or origin.drift.magnitude == 0:
        return "the rows' largest elements agree; smaller ones differ"
    return f"largest elements moved by {drift(origin.drift.magnitude)} ({origin.drift.relative:.1e} of their size)"


def _spread(result: OriginResult) -> Iterator[RenderableType]:
    if result.carriers.rows:
        rows = counted(result.carriers.rows, "KV row")
        yield line("carriers", f"{rows} hold the difference up to the decision: {positions(result.carriers.positions)}")
    gone = finished_words(result.neighbours)
    if gone:
        yield line("neighbours", f"{gone} when the token was decided")
    if result.candidates:
        origins = sum(candidate.is_origin for candidate in result.candidates)
        steps = counted(len(result.candidates), "pair", "pairs")
        yield line(
            "candidates", f"{steps} of steps took other paths, {origins} of them origins; a re-run can prove which"
        )
    listed_faults = {fault for origin in result.origins for fault in origin.faults}
    for fault in [f for f in result.faults if f not in listed_faults][:MOST_FAULTS]:
        where = f"run {fault.run}, {name(fault.request)}, position {fault.position}"
        yield line("fault", f"{where}: {fault.kind}, {name(fault.expected)} expected, {name(fault.found)} found")
    for what in result.missing:
        yield line("missing", what)
