"""What is planned on the host for the CUDA kernels: launches and tiles; no device needed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.kernels.invariant import visible_keys
from engine.kernels.invariant.cuda_attention import LINES, WALK_WARPS, device_keys, tile_lines
from engine.kernels.invariant.cuda_kernels import header
from engine.kernels.invariant.cuda_launch import SHARED_BYTES, BlockLaunch, half_launch, slice_steps

segments = st.lists(st.integers(1, 70), min_size=1, max_size=6)


@given(segments, st.integers(1, 9), st.sampled_from([1, 4]))
def test_tiles_cover_every_line_of_every_segment_once(rows: list[int], group: int, multiple: int) -> None:
    tables = np.repeat(np.arange(len(rows), dtype=np.int32), rows)
    tiles = tile_lines(tables, group, multiple)
    seen = []
    for table, first_row, first_line, lines in tiles.tolist():
        assert lines == rows[table] * group
        for line in range(first_line, min(first_line + LINES, lines)):
            seen.append((first_row + line // group, line % group))
    assert sorted(seen) == [(row, head) for row in range(sum(rows)) for head in range(group)]


@given(segments, st.integers(1, 9))
def test_the_tiles_of_a_block_belong_to_one_segment(rows: list[int], group: int) -> None:
    tables = np.repeat(np.arange(len(rows), dtype=np.int32), rows)
    tiles = tile_lines(tables, group, WALK_WARPS)
    assert len(tiles) % WALK_WARPS == 0
    for block in tiles.reshape(-1, WALK_WARPS, 4):
        assert len({(table, first_row) for table, first_row, _, _ in block.tolist()}) == 1
        assert np.diff(block[:, 2]).tolist() == [LINES] * (WALK_WARPS - 1)


@given(st.integers(1, 4096), st.integers(1, 200_000), st.sampled_from([0, 2, 3, 4, 5, 6, 8]))
def test_every_launch_covers_the_call_and_fits_into_shared_memory(rows: int, columns: int, bits: int) -> None:
    launch = half_launch(rows, columns, bits)
    across, along = launch.blocks(rows, columns)
    is_block = isinstance(launch, BlockLaunch)
    assert across * launch.tiles * 16 * (launch.warps if is_block else 1) >= columns
    assert along * launch.row_tiles * 8 >= rows
    if isinstance(launch, BlockLaunch):
        assert launch.shared_bytes(bits) <= SHARED_BYTES


def test_the_order_of_sums_follows_from_the_input_size_alone() -> None:
    assert [slice_steps(size) for size in (32, 1024, 1056, 2048, 2080, 18_944)] == [1, 1, 2, 2, 4, 4]


def test_many_rows_are_walked_and_few_are_split() -> None:
    def keys_of(rows: int, length: int) -> bool:
        table, of_row = np.arange(length, dtype=np.int32)[None], np.zeros(rows, np.int32)
        visible = visible_keys(table, of_row, np.full(rows, length), pool_slots=length)
        return device_keys(visible, 28, 4, 128).walks

    assert not keys_of(1, 1000)
    assert keys_of(512, 1000)


def test_heads_that_make_no_groups_are_named() -> None:
    visible = visible_keys(np.zeros((1, 1)), np.zeros(1), np.ones(1), pool_slots=1)
    with pytest.raises(EngineError, match="whole groups, not 7 over 2"):
        device_keys(visible, 7, 2, 64)


def test_the_device_code_is_found_and_travels_without_its_comments() -> None:
    text = header(("primitives.cuh", "linear.cuh"))
    assert "stream_linear" in text
    assert "//" not in text
