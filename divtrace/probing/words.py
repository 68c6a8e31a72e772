"""Cases, row counts and times in words. Must not know how they are laid out."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from divtrace.probing.cases import Case
from divtrace.probing.ranges import spoken
from divtrace.probing.result import Findings
from divtrace.render.text import counted

MOST_RUNS = 3
HANGING, NO_BREAK_SPACE = "  ", "\u00a0"


def case_words(case: Case | Findings) -> str:
    """`matmul 576x1536 float32 (mlx)`: what runs, in which type, by whom and on how many threads."""
    shape = case.shape if case.dtype in case.shape else f"{case.shape} {case.dtype}"
    threads = f", {counted(case.threads, 'thread')}" if case.threads else ""
    return f"{case.operation} {shape} ({case.implementation}{threads})"


def wrapped_case(case: Case | Findings, width: int) -> list[str]:
    """The case in lines of `width` columns; who runs it stays on one line where that fits."""
    what, bracket, who = case_words(case).rpartition("(")
    if len(HANGING) + len(bracket + who) <= width:
        who = who.replace(" ", NO_BREAK_SPACE)
    lines = wrap(what + bracket + who, width, subsequent_indent=HANGING, break_on_hyphens=False)
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


def spoken_within(counts: Sequence[int], tried: Sequence[int], width: int) -> str:
    """Row counts in as many runs as fit `width` characters, one run at least; the rest is counted."""
    texts = [spoken(counts, tried)]
    texts += [spoken(counts, tried, runs) for runs in range(MOST_RUNS, 0, -1)]
    return next((text for text in texts if len(text) <= width), texts[-1])


def dependences(found: Findings) -> str:
    """What else a row's bits depend on and at which row counts, `index 5-7; threads all`; empty where on nothing."""
    named = (
        ("index", found.index_dependent),
        ("company", found.neighbour_dependent),
        ("padding", found.padding_dependent),
        ("threads", found.thread_dependent or ()),
        ("chance", found.unrepeatable),
    )
    return "; ".join(f"{name} {spoken(counts, found.row_counts, MOST_RUNS)}" for name, counts in named if counts)


def milliseconds(found: Findings, count: int) -> str:
    """The best time of a call of `count` rows in three digits, `-` where it was not tried."""
    elapsed_s = found.time_s.get(count)
    if elapsed_s is None:
        return "-"
    elapsed_ms = elapsed_s * 1e3
    return f"{elapsed_ms:.3f}" if elapsed_ms < 1 else f"{elapsed_ms:.2f}" if elapsed_ms < 100 else f"{elapsed_ms:.0f}"
