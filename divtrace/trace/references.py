"""Which columns point into which tables: what a reader checks so that nobody indexes past an end."""

from __future__ import annotations

from dataclasses import dataclass

from divtrace.trace.schema import Column


@dataclass(frozen=True, slots=True)
class Span:
    """An offset column: rows `offset .. offset + count` of `target`, with `count` in a column beside it."""

    count: str
    target: str


SPANS = {
    ("strings", "offset"): Span("count", "string_bytes"),
    ("token_texts", "offset"): Span("count", "token_text_bytes"),
    ("requests", "prompt_offset"): Span("prompt_count", "token_lists"),
    ("completions", "output_offset"): Span("output_count", "token_lists"),
    ("steps", "segment_offset"): Span("segment_count", "segments"),
    ("steps", "row_offset"): Span("packed_rows", "rows"),
    ("steps", "sampled_offset"): Span("sampled_count", "sampled"),
    ("segments", "token_offset"): Span("rows", "token_lists"),
    ("plans", "site_offset"): Span("site_count", "plan_sites"),
    ("drafts", "proposed_offset"): Span("proposed_count", "token_lists"),
    ("draft_forwards", "segment_offset"): Span("segment_count", "draft_segments"),
    ("draft_forwards", "row_offset"): Span("packed_rows", "draft_rows"),
    ("draft_segments", "token_offset"): Span("rows", "token_lists"),
    ("draft_rows", "layer_offset"): Span("layer_count", "draft_layers"),
    ("footer", "failure_offset"): Span("failure_count", "string_bytes"),
    ("tensors", "shape_offset"): Span("shape_count", "tensor_shapes"),
    ("tensors", "bytes_offset"): Span("bytes_count", "tensor_bytes"),
}
_ROW_NUMBERS = {
    "request": "requests",
    "writer_request": "requests",
    "plan": "plans",
    "step": "steps",
    "writer_step": "steps",
}
_BETWEEN_STEPS = frozenset({"completions"})
"""Tables whose `step` may also be the step after the last: what happened when no further step was planned."""


def referred_table(column: Column) -> str | None:
    """The table whose row numbers this column holds, if it holds any."""
    return "strings" if column.name.endswith("_string") else _ROW_NUMBERS.get(column.name)


def largest_row_number(table: str, column: Column, target_rows: int) -> int:
    """The largest number that may stand in a column which refers to a table of `target_rows` rows."""
    return target_rows if table in _BETWEEN_STEPS and column.name == "step" else target_rows - 1
