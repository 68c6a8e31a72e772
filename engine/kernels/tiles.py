"""Whether calls of T rows give a row the same bits at every place in the call: what `tile:T` rests on.

Must not know policies, steps or where verdicts are kept.
"""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from engine.kernels.linear import LinearKernel, linear_kernel
from engine.kernels.site import FloatArray, LinearSite

MOST_FILLS = 32
ROTATIONS = (1, 2, 3, 5)


def tile_hides_the_index(site: LinearSite, tile_rows: int) -> bool:
    """Run a site's weights in tiles of `tile_rows` rows, and compare bits.

    One row is repeated over the whole tile, then over the first rows of a tile that zero rows fill up (every count of
    rows, or `MOST_FILLS` spread over them), and a tile of distinct rows is rotated: a row must have one result
    everywhere. Random rows from a fixed seed.
    """
    kernel = linear_kernel(f"tile-{tile_rows}")
    rows = np.random.default_rng(0).standard_normal((tile_rows, site.input_size)).astype(np.float32)
    expected = _run(kernel, site, np.repeat(rows[:1], tile_rows, axis=0))
    if not _all_equal(expected, expected[:1]):
        return False
    for fill in _fills(tile_rows):
        if not _all_equal(_run(kernel, site, np.repeat(rows[:1], fill, axis=0)), expected[:1]):
            return False
    distinct = _run(kernel, site, rows)
    if distinct[:1].tobytes() != expected[:1].tobytes():
        return False
    shifts = {shift % tile_rows for shift in (*ROTATIONS, tile_rows // 2, tile_rows - 1)}
    return all(
        _run(kernel, site, np.roll(rows, shift, axis=0)).tobytes() == np.roll(distinct, shift, axis=0).tobytes()
        for shift in sorted(shifts)
    )


def _fills(tile_rows: int) -> Iterator[int]:
    if tile_rows - 1 <= MOST_FILLS:
        yield from range(1, tile_rows)
    else:
        yield from sorted({int(count) for count in np.linspace(1, tile_rows - 1, MOST_FILLS)})


def _run(kernel: LinearKernel, site: LinearSite, rows: FloatArray) -> FloatArray:
    dtype = site.leaf.scales.dtype if site.is_quantized else site.leaf.weight.dtype
    return np.array(kernel(site, mx.array(rows).astype(dtype)).astype(mx.float32))


def _all_equal(rows: FloatArray, expected: FloatArray) -> bool:
    return rows.tobytes() == np.repeat(expected, rows.shape[0], axis=0).tobytes()
