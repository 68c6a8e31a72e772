"""How many columns and rows a block of the half-precision CUDA linears takes: speed, never bits. Must not know MLX.

Chosen from measurements on one H200 in the shapes of Qwen2.5-7B (docs/benchmarks/cuda.md).
"""

from __future__ import annotations

from dataclasses import dataclass

LINE = 16
ROWS = 8
STEP = 128
ROW_BYTES = ROWS * STEP * 2
FEW_COLUMNS = 1024
SHARED_BYTES = 227 * 1024


@dataclass(frozen=True, slots=True)
class StreamLaunch:
    """`stream_linear`: a block has `tiles` * 16 columns and `row_tiles` * 8 rows; its `warps` share the slices."""

    tiles: int
    row_tiles: int
    warps: int

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Blocks along columns and along rows."""
        return -(-columns // (LINE * self.tiles)), -(-rows // (ROWS * self.row_tiles))


@dataclass(frozen=True, slots=True)
class BlockLaunch:
    """`block_linear`: a block has `warps` * `tiles` * 16 columns and `row_tiles` * 8 rows, in `stages` buffers."""

    tiles: int
    row_tiles: int
    warps: int
    stages: int

    def blocks(self, rows: int, columns: int) -> tuple[int, int]:
        """Blocks along columns and along rows."""
        return -(-columns // (LINE * self.tiles * self.warps)), -(-rows // (ROWS * self.row_tiles))

    def shared_bytes(self, bits: int) -> int:
        """Shared memory of a block for weights of `bits` (0: dense halves)."""
        run_words = bits or 16
        weight_bytes = self.warps * self.tiles * LINE * 4 * run_words * 4
        return self.stages * (self.row_tiles * ROW_BYTES + weight_bytes)


def slice_steps(input_size: int) -> int:
    """Steps of 128 values that are summed in one chain. It sets the order of sums: of `input_size` alone."""
    if input_size <= 1024:
        return 1
    return 2 if input_size <= 2048 else 4


def half_launch(rows: int, columns: int, bits: int) -> StreamLaunch | BlockLaunch:
    """The launch for a call; any launch gives the same bits."""
    if columns <= FEW_COLUMNS:
        if rows <= 64:
            return StreamLaunch(1, 1, 8)
        return StreamLaunch(1, 2, 8) if rows <= 128 else StreamLaunch(2, 2, 4)
    if rows <= 8:
        return StreamLaunch(1, 1, 8)
    if rows <= 16:
        return StreamLaunch(1, 2, 8)
    if rows <= 32:
        return StreamLaunch(2, 2, 8)
    if rows <= 64:
        return StreamLaunch(2, 2, 4)
    if rows <= 128:
        return BlockLaunch(2, 4, 4, 3)
    wide = BlockLaunch(2, 8, 8, 3)
    return wide if wide.shared_bytes(bits) <= SHARED_BYTES else BlockLaunch(2, 8, 4, 3)
