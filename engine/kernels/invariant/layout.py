"""How weights lie in memory, as plain integers that compiled code can take. Must not know numba."""

from __future__ import annotations

from typing import NamedTuple

LANES = 16
BLOCK_COLUMNS = 4
F32_STORED, F16_STORED, BF16_STORED = 0, 1, 2


class WeightLayout(NamedTuple):
    """Weights of one linear: (output_size, input_size), rows of `row_bytes` bytes.

    `bits` is 0 for dense weights, else the width of MLX's affine packing with groups of `1 << group_shift`. `stored`
    is the type of dense weights, or of the scales and biases. `bias` is the address of (output_size,) f32, 0 for none.
    """

    weights: int
    scales: int
    biases: int
    bias: int
    bits: int
    stored: int
    group_shift: int
    row_bytes: int
    input_size: int
    output_size: int


class RowsLayout(NamedTuple):
    """Input rows at address `x`, f32, each `padded_size` elements (zeros past the input size), and where outputs go.

    `reordered` is the address of the same rows in the order of lanes that suits packed weights, 0 when there are too
    many rows for it to pay. Rows are taken in panels of `panel_rows`, inside a panel in blocks of at most
    `block_rows`; nothing of this shows in the bits.
    """

    x: int
    reordered: int
    out: int
    rows: int
    padded_size: int
    panel_rows: int
    block_rows: int


class AttentionLayout(NamedTuple):
    """One attention call: `rows` queries (rows, heads, head_size) f32 over pools (slots, kv_heads, head_size) f32.

    Row `r` sees the first `lengths[r]` entries of slot table `table_of_row[r]` (all int32, tables `table_width`
    wide), or the last `window` of these when `window` is not 0. `sinks` is the address of (heads,) f32, 0 for none.
    `padded_keys` is a multiple of sixteen above the most keys of any row.
    """

    queries: int
    keys: int
    values: int
    slots: int
    table_of_row: int
    lengths: int
    sinks: int
    out: int
    table_width: int
    rows: int
    heads: int
    kv_heads: int
    head_size: int
    window: int
    padded_keys: int
