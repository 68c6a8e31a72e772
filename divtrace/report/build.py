"""Two traces (or one) and a blame result made into what the page's script draws. Must not know HTML."""

from __future__ import annotations

from divtrace.align.index import TraceIndex
from divtrace.align.runs import RunPair
from divtrace.origin.records import OriginResult, PositionRange
from divtrace.render.sentence import described_side
from divtrace.report.evidence import cause_steps
from divtrace.report.kv_map import read_kv_map
from divtrace.report.model import Focus, OriginMark, Report, RequestPage, StringTable
from divtrace.report.page_text import page_text
from divtrace.report.requests import RequestReader, in_reading_order
from divtrace.report.runs import read_run
from divtrace.trace.reader import Trace
from divtrace.verdict.records import BlameResult


def build_single(trace: Trace) -> Report:
    """A report of one run."""
    strings = StringTable()
    index = TraceIndex(trace)
    reader = RequestReader(strings)
    read = [reader.single(index, number) for number in range(len(index.request_ids))]
    pages = [page for page in read if page is not None]
    return Report([read_run(index, "", strings)], pages, len(read) - len(pages), strings.strings, None, None)


def build_pair(a: Trace, b: Trace, blame: BlameResult) -> Report:
    """A report of two runs and what was found about their difference."""
    strings = StringTable()
    runs = RunPair(a, b)
    origins = blame.origins
    diverged = [request.id_a for request in blame.diff.requests if request.divergence is not None]
    focus_id = origins.request_a if origins is not None else (diverged[0] if diverged else None)
    pairs = in_reading_order(runs, focus_id, diverged)
    reader = RequestReader(strings)
    read = [reader.pair(runs, pair) for pair in pairs] + _unpaired(reader, runs)
    pages = [page for page in read if page is not None]
    return Report(
        runs=[read_run(runs.a, "A", strings), read_run(runs.b, "B", strings)],
        requests=pages,
        left_out_requests=len(read) - len(pages),
        strings=strings.strings,
        focus=_focus(runs, origins, cause_steps(blame.proof)) if origins is not None and pages else None,
        kv=read_kv_map(runs, pairs[0]) if pairs else None,
    )


def _unpaired(reader: RequestReader, runs: RunPair) -> list[RequestPage | None]:
    pairing = runs.pairing
    only_a = set(pairing.only_in_a) | {name for group in pairing.ambiguous for name in group.ids_a}
    only_b = set(pairing.only_in_b) | {name for group in pairing.ambiguous for name in group.ids_b}
    left = [reader.single(runs.a, n) for n, name in enumerate(runs.a.request_ids) if name in only_a]
    right = [reader.single(runs.b, n, is_b=True) for n, name in enumerate(runs.b.request_ids) if name in only_b]
    return left + right


def _focus(runs: RunPair, origins: OriginResult, causes: frozenset[tuple[int, int]]) -> Focus:
    numbers_a = {name: number for number, name in enumerate(runs.a.request_ids)}
    numbers_b = {name: number for number, name in enumerate(runs.b.request_ids)}
    marks = [
        OriginMark(
            step_a=origin.step_a,
            step_b=origin.step_b,
            request_a=numbers_a[origin.request_a],
            request_b=numbers_b[origin.request_b],
            positions=_ranges(origin.positions),
            layer=origin.layer,
            is_cause=(origin.step_a, origin.step_b) in causes,
            run="AB".index(described_side(origin)[0]),
            joined=sorted({page_text(s.request) for crossing in origin.crossings for s in crossing.joined}),
        )
        for origin in origins.origins
    ]
    return Focus(
        request=0,
        position=origins.position,
        step_a=origins.step_a,
        step_b=origins.step_b,
        flipped=origins.flipped,
        origins=marks,
        carriers=_ranges(origins.carriers.positions),
    )


def _ranges(ranges: tuple[PositionRange, ...]) -> list[tuple[int, int]]:
    return [(span.first, span.last) for span in ranges]
