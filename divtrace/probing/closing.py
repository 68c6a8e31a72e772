"""What stands below a probe's table: tiles that hold, calls that did not repeat, cases not run. Must not measure."""

from __future__ import annotations

from rich.text import Text

from divtrace.probing.result import ProbeResult, TileProposal
from divtrace.probing.tiles import TILED_IMPLEMENTATION, propose_for_all
from divtrace.probing.words import case_words
from divtrace.render.text import counted


def closing_lines(result: ProbeResult) -> list[Text]:
    """Tiles with equal sizes share a line; the last two lines are the size for all shapes and the time taken."""
    lines = [
        Text(f"not repeatable: {case_words(found)}", style="bold red")
        for found in result.findings
        if found.unrepeatable
    ]
    if result.not_run:
        lines.append(Text(f"not run for lack of time: {'; '.join(result.not_run)}", style="dim"))
    lines += _tiles(result)
    lines += _tile_for_all(result)
    return [*lines, Text(f"{result.elapsed_s:.1f} s; seed {result.seed}", style="dim")]


def _tiles(result: ProbeResult) -> list[Text]:
    alike: dict[tuple[int | None, tuple[int, ...], str, int], list[TileProposal]] = {}
    for tile in result.tiles:
        alike.setdefault((tile.best, tile.candidates, tile.implementation, tile.threads), []).append(tile)
    lines = []
    for (best, candidates, implementation, threads), tiles in alike.items():
        where = f"by {implementation} on {counted(threads, 'thread')}: {', '.join(tile.shape for tile in tiles)}"
        if best is None:
            lines.append(Text(f"tile: no row count holds {where}"))
        else:
            lines.append(Text(f"tile:{best} (holds at {', '.join(map(str, candidates))}) {where}"))
    return lines


def _tile_for_all(result: ProbeResult) -> list[Text]:
    cases = [found for found in result.findings if found.implementation == TILED_IMPLEMENTATION]
    if len(cases) < 2:
        return []
    size = propose_for_all(cases)
    if size is None:
        return [Text("tile: no row count holds for all of these shapes; use gemv or invariant", style="bold")]
    return [Text(f"tile:{size} holds for all of these shapes: record with policy=tile:{size}", style="bold")]
