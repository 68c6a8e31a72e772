"""`write_report`: from open traces to a file on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from divtrace import __version__
from divtrace.report.build import build_pair, build_single
from divtrace.report.chain import chain
from divtrace.report.glossary import glossary
from divtrace.report.page import Page, render_page
from divtrace.report.page_text import page_text
from divtrace.report.retry import retry_commands
from divtrace.report.story import tell
from divtrace.report.tables import (
    controls_table,
    drafts_table,
    origin_table,
    past_flip_table,
    reference_table,
    requests_table,
    settings_table,
    trials_table,
)
from divtrace.show.render_run import run_facts
from divtrace.trace.reader import Trace
from divtrace.verdict.blame import blame as blame_runs
from divtrace.verdict.records import BlameResult


def write_report(
    path: Path | str, a: Trace, b: Trace | None = None, blame: BlameResult | None = None, commands: Sequence[str] = ()
) -> Path:
    """Write one self-contained HTML file about a run, or about two runs and why they differ.

    Args:
        path: the file to write; a file that is there is replaced once the new one is complete.
        a: the run, or the reference run.
        b: the other run.
        blame: what blame found; without it, the runs are blamed here without proof, which takes no model.
        commands: the commands that reproduce the runs and this report, shown at its end.

    Raises:
        TraceError: a trace is damaged. OSError: the file cannot be written.
    """
    shown = tuple(page_text(command) for command in commands)
    if b is None:
        html = _single_html(a, shown)
    else:
        html = _pair_html(a, b, blame if blame is not None else blame_runs(a, b), shown)
    return _replace_file(Path(path), html)


def _single_html(trace: Trace, commands: tuple[str, ...]) -> str:
    report = build_single(trace)
    page = Page(
        title=f"{report.runs[0].name}: one run",
        story=None,
        chain=(),
        glossary=glossary(report),
        origin=None,
        controls=None,
        trials=None,
        reference=None,
        past_flip=None,
        settings=None,
        requests=None,
        drafts=None,
        facts=_facts(trace),
        next_time=(),
        commands=commands,
        version=__version__,
    )
    return render_page(page, report)


def _pair_html(a: Trace, b: Trace, blame: BlameResult, commands: tuple[str, ...]) -> str:
    report = build_pair(a, b, blame)
    page = Page(
        title=f"{report.runs[0].name} against {report.runs[1].name}: {blame.verdict.value}",
        story=tell(blame, retry_commands(a, b)),
        chain=chain(blame),
        glossary=glossary(report),
        origin=origin_table(blame),
        controls=controls_table(blame),
        trials=trials_table(blame),
        reference=reference_table(blame),
        past_flip=past_flip_table(blame),
        settings=settings_table(blame),
        requests=requests_table(blame),
        drafts=drafts_table(blame),
        facts=(),
        next_time=tuple(page_text(advice) for advice in blame.next_time),
        commands=commands,
        version=__version__,
    )
    return render_page(page, report)


def _facts(trace: Trace) -> tuple[tuple[str, str], ...]:
    return tuple((name, page_text(value)) for name, value in run_facts(trace))


def _replace_file(path: Path, html: str) -> Path:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_text(html, encoding="utf-8", newline="\n")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    return path
