"""A probe's result as one self-contained HTML page with a heat map. Must not know how it was measured."""

from __future__ import annotations

from html import escape

from divtrace.probing.ranges import spoken
from divtrace.probing.result import Findings, ProbeResult, class_of
from divtrace.probing.words import case_words

CELL_WIDTH, CELL_HEIGHT, LABEL_WIDTH, HEADER_HEIGHT = 15, 18, 430, 30
COLOURS = ("#3a7d44", "#c1432e", "#d98e04", "#2d6cb5", "#8454a0", "#1c8c8c", "#a33b6b", "#7a6a2f", "#5b6770")
STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #1b1f24; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { padding: 2px 8px; border-bottom: 1px solid #d7dbe0; }
th { text-align: left; } td.number { text-align: right; } td.bad { color: #c1432e; } td.good { color: #3a7d44; }
svg text { font: 11px system-ui, sans-serif; fill: currentColor; }
@media (prefers-color-scheme: dark) { body { color: #e6e8eb; background: #14171a; } }
"""


def render_html(result: ProbeResult) -> str:
    """The whole page: machine, heat map (SVG), table, tiles and what was left out."""
    machine = result.machine
    where = (
        f"{machine.processor}, {machine.cores} cores. MLX {machine.mlx_version} on {machine.backend}"
        f" {machine.architecture}."
        f" numpy {machine.numpy_version} with {machine.blas}. Weights: {result.source}, seed {result.seed}."
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>divtrace probe</title>'
        f"<style>{STYLE}</style></head><body><h1>Where this machine changes a row's bits</h1>"
        f"<p>{escape(where)}</p>"
        "<p>Each line is a kernel, each cell a row count. Cells of one colour on a line gave row 0 the same bits;"
        " a dot marks row counts at which identical rows of one call had distinct results.</p>"
        f"{_heat_map(result)}{_table(result)}{_tiles(result)}{_left_out(result)}</body></html>\n"
    )


def _heat_map(result: ProbeResult) -> str:
    counts = sorted({count for found in result.findings for count in found.row_counts})
    width = LABEL_WIDTH + CELL_WIDTH * len(counts)
    height = HEADER_HEIGHT + CELL_HEIGHT * len(result.findings)
    head = "".join(
        f'<text x="{LABEL_WIDTH + CELL_WIDTH * place}" y="20">{count}</text>'
        for place, count in enumerate(counts)
        if count == 1 or place % 4 == 3 or count > 40
    )
    lines = "".join(
        _heat_line(found, counts, HEADER_HEIGHT + CELL_HEIGHT * line) for line, found in enumerate(result.findings)
    )
    return (
        f'<svg role="img" aria-label="results by row count" viewBox="0 0 {width + 20} {height}" width="{width + 20}">'
        f"{head}{lines}</svg>"
    )


def _heat_line(found: Findings, counts: list[int], top: int) -> str:
    cells = [f'<text x="0" y="{top + 13}">{escape(case_words(found))}</text>']
    for place, count in enumerate(counts):
        if count not in found.row_counts:
            continue
        left = LABEL_WIDTH + CELL_WIDTH * place
        colour = COLOURS[class_of(found, count) % len(COLOURS)]
        cells.append(
            f'<rect x="{left}" y="{top}" width="{CELL_WIDTH - 1}" height="{CELL_HEIGHT - 2}" fill="{colour}">'
            f"<title>{count} rows: {escape(cell_text(found, count))}</title></rect>"
        )
        if count in found.index_dependent:
            cells.append(f'<circle cx="{left + 7}" cy="{top + 8}" r="2.5" fill="#fff"/>')
    return "".join(cells)


def cell_text(found: Findings, count: int) -> str:
    """What was found at one row count, in a few words."""
    facts = [f"result {class_of(found, count) + 1}", f"{found.time_s[count] * 1e3:.3f} ms"]
    for counts, fact in (
        (found.changed, "differs from the row alone"),
        (found.index_dependent, "depends on the row's index"),
        (found.neighbour_dependent, "depends on the other rows' content"),
        (found.padding_dependent, "depends on padding"),
        (found.thread_dependent or (), "depends on the number of threads"),
        (found.unrepeatable, "does not repeat"),
    ):
        if count in counts:
            facts.append(fact)
    return ", ".join(facts)


def _table(result: ProbeResult) -> str:
    heads = (
        "operation",
        "by",
        "shape",
        "threads",
        "differs at",
        "index",
        "company",
        "padding",
        "threads matter",
    )
    rows = []
    for found in result.findings:
        tried = found.row_counts
        listed = [
            found.changed,
            found.index_dependent,
            found.neighbour_dependent,
            found.padding_dependent,
            found.thread_dependent,
        ]
        cells = "".join(
            "<td>-</td>"
            if counts is None
            else f'<td class="{"bad" if counts else "good"}">{spoken(counts, tried)}</td>'
            for counts in listed
        )
        names = (
            found.operation,
            found.implementation,
            f"{found.shape} {found.dtype}",
            str(found.threads or "-"),
        )
        rows.append(
            f"<tr>{''.join(f'<td>{escape(name)}</td>' for name in names)}{cells}"
            f'<td class="number">{len(found.classes)}</td><td class="number">{found.most_ulps:.1f}</td></tr>'
        )
    head_line = "".join(f"<th>{head}</th>" for head in (*heads, "classes", "ULPs"))
    return f"<table><tr>{head_line}</tr>{''.join(rows)}</table>"


def _tiles(result: ProbeResult) -> str:
    lines = "".join(
        f"<li>{escape(tile.shape)}, {escape(tile.implementation)}, {tile.threads} threads:"
        f" {'no tile holds' if tile.best is None else f'tile:{tile.best}'}"
        f" (holds at {', '.join(map(str, tile.candidates)) or 'none'})</li>"
        for tile in result.tiles
    )
    return f"<h2>Tiles</h2><ul>{lines}</ul>" if lines else ""


def _left_out(result: ProbeResult) -> str:
    lines = [f"{case_words(found)}: {found.skipped[0]} rows and more" for found in result.findings if found.skipped]
    lines += [f"{name}: not run" for name in result.not_run]
    if not lines:
        return ""
    return f"<h2>Left out for lack of time</h2><ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
