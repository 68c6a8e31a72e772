"""Pieces that both reports use: headings, labelled lines, the table of deciding logits. Rich `Text`, never markup."""

from __future__ import annotations

from collections.abc import Iterable

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from divtrace.divergence.records import Flip, TokenDivergence, TopLogit
from divtrace.render.text import drift, logit, quoted

LABEL_COLUMNS = 12


def heading(text: str) -> Text:
    """A section's first line."""
    return Text(text, style="bold")


def line(label: str, text: str, columns: int = LABEL_COLUMNS) -> Table:
    """A label and what it says, wrapped beside it; the label takes `columns`, its indent included."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=columns, no_wrap=True)
    grid.add_column()
    grid.add_row(Text(f"  {label}", style="dim"), Text(text))
    return grid


def indented(text: str, columns: int = 2) -> Padding:
    """A wrapped line that starts further right."""
    return Padding(Text(text), (0, 0, 0, columns))


def logits_table(divergence: TokenDivergence) -> Padding:
    """Both tokens' logits in both runs, and how far they moved."""
    table = Table(box=None, pad_edge=False)
    table.add_column("token", overflow="fold")
    for title in ("logit in A", "logit in B", "drift", "ULPs"):
        table.add_column(title, justify="right", no_wrap=True)
    for moved in divergence.drifts:
        ulps = "-" if moved.ulps is None else f"{moved.ulps:,}"
        table.add_row(Text(quoted(moved.token)), logit(moved.a), logit(moved.b), drift(moved.drift), ulps)
    return Padding(table, (0, 0, 0, 2))


def top_logits(top: Iterable[TopLogit], most: int = 4) -> str:
    """The largest logits of one decision on one line."""
    return "  ".join(f"{quoted(entry.token)} {logit(entry.logit)}" for entry in list(top)[:most])


def flip_words(flip: Flip) -> str:
    """Whether drift explains the flip, with the numbers behind it."""
    answer = {True: "drift explains the flip", False: "drift does not explain the flip", None: "not decidable"}
    text = f"{answer[flip.explained]}: {flip.reason}"
    if flip.differential_drift is not None:
        text += (
            f" (margins {logit(flip.margin_a)} in A and {logit(flip.margin_b)} in B, moved against each other by "
            f"{logit(flip.differential_drift)})"
        )
    if flip.largest_drift_before == 0:
        text += "; before the flip no recorded top logit had drifted"
    elif flip.largest_drift_before is not None:
        text += (
            f"; before the flip logits had drifted by up to {drift(flip.largest_drift_before)}, "
            f"median {drift(flip.median_drift_before)}"
        )
    return text
