"""Schema v1 of a trace: every table, column and dtype. Writer, reader and docs/trace-format.md follow this file.

A table is an HDF5 group; a column is a dataset of shape (rows,) or (rows, layers) / (rows, k). Ragged data is a pair
of columns `<name>_offset` (uint64, into the flat table) and `<name>_count` (uint32). Strings live in `strings` (UTF-8
bytes, offsets) and are referred to by index (columns named `*_string`). Request ids are such indices too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

SCHEMA_VERSION = 1
HASH_NAME = "xxh3_64"
GRAPH_HASH_NAME = "multilinear_64"
HASH_VARIABLE = "DIVTRACE_HASH"
"""Environment variable that names the hash of K/V rows for recordings to come."""


class Level(StrEnum):
    """How much a trace holds; each level includes the ones before it."""

    TOKENS = "tokens"
    LOGITS = "logits"
    KV = "kv"
    TENSORS = "tensors"

    def includes(self, other: Level) -> bool:
        """True when a trace of this level holds what `other` holds."""
        order = list(Level)
        return order.index(self) >= order.index(other)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: numpy dtype string, meaning, width (`""`, `layers`, `top_k` or `tables`), level that brings it."""

    name: str
    dtype: str
    meaning: str
    width: str = ""
    level: Level = Level.TOKENS


@dataclass(frozen=True, slots=True)
class Table:
    """One append-only table."""

    name: str
    meaning: str
    columns: tuple[Column, ...]


STRINGS = Table(
    "strings",
    "interned UTF-8 strings",
    (
        Column("offset", "u8", "first byte in string_bytes"),
        Column("count", "u4", "bytes"),
    ),
)
STRING_BYTES = Table("string_bytes", "bytes of all strings, one after another", (Column("value", "u1", "byte"),))
TOKEN_LISTS = Table(
    "token_lists", "token ids of prompts, segments and drafts, one after another", (Column("value", "u4", "token id"),)
)
TOKEN_TEXTS = Table(
    "token_texts",
    "text of every token id that occurs in this trace, once",
    (
        Column("token", "u4", "token id"),
        Column("offset", "u8", "first byte in token_text_bytes"),
        Column("count", "u4", "bytes (may be part of a UTF-8 character)"),
    ),
)
TOKEN_TEXT_BYTES = Table("token_text_bytes", "bytes of token texts", (Column("value", "u1", "byte"),))
REQUESTS = Table(
    "requests",
    "one row per request, in submission order",
    (
        Column("id_string", "u4", "request id"),
        Column("submitted_step", "u4", "step before whose planning it was submitted"),
        Column("prompt_offset", "u8", "into token_lists"),
        Column("prompt_count", "u4", "prompt tokens"),
        Column("settings_string", "u4", "JSON: max_tokens, sampling, stop rules, priority, arrival"),
    ),
)
COMPLETIONS = Table(
    "completions",
    "one row per ended request",
    (
        Column("request", "u4", "row in requests"),
        Column("step", "u4", "step in which it ended"),
        Column("output_offset", "u8", "into token_lists"),
        Column("output_count", "u4", "output tokens"),
        Column("reason_string", "u4", "length, stop, cancelled, timeout, refused, error"),
        Column("detail_string", "u4", "free text"),
        Column("queued_s", "f8", "seconds on the run's monotonic clock"),
        Column("scheduled_s", "f8", "NaN when never scheduled"),
        Column("first_token_s", "f8", "NaN when it produced none"),
        Column("finished_s", "f8", "seconds"),
    ),
)
STEPS = Table(
    "steps",
    "one row per step; row index = step number",
    (
        Column("step", "u4", "step number"),
        Column("packed_rows", "u4", "rows of the transformer's linears"),
        Column("head_rows", "u4", "rows of the output projection"),
        Column("max_query_length", "u4", "longest segment"),
        Column("max_key_length", "u4", "longest context"),
        Column("plan", "u4", "row in plans"),
        Column("segment_offset", "u8", "into segments"),
        Column("segment_count", "u4", "segments"),
        Column("row_offset", "u8", "into rows"),
        Column("sampled_offset", "u8", "into sampled"),
        Column("sampled_count", "u4", "sampled rows"),
        Column("running", "u4", "requests running"),
        Column("waiting", "u4", "requests waiting"),
        Column("blocks_used", "u4", "KV blocks in use"),
        Column("blocks_cached", "u4", "KV blocks full, cached and unused"),
        Column("blocks_total", "u4", "KV blocks in the pool, 0 when KV is not paged"),
        Column("schedule_s", "f8", "seconds"),
        Column("draft_s", "f8", "seconds"),
        Column("forward_s", "f8", "seconds"),
        Column("sample_s", "f8", "seconds"),
        Column("flags", "u4", "bit 0: NaN or Inf in logits; bit 1: in K/V; bit 2: audit failure"),
        Column("digest", "u8", "hash of the step's row digests", level=Level.KV),
    ),
)
SEGMENTS = Table(
    "segments",
    "one row per segment, in batch order",
    (
        Column("step", "u4", "step number"),
        Column("request", "u4", "row in requests"),
        Column("kind", "u1", "0 prefill, 1 decode, 2 verify, 3 recompute"),
        Column("first_position", "u4", "position of the first row"),
        Column("rows", "u4", "packed rows"),
        Column("first_row", "u4", "first packed row"),
        Column(
            "cached_tokens",
            "u4",
            "positions before it taken just now from the prefix cache, or from the request it samples",
        ),
        Column("wanted_logits", "u4", "rows with logits (the last ones)"),
        Column("proposed_tokens", "u4", "trailing input tokens that are draft proposals"),
        Column("token_offset", "u8", "input ids, into token_lists"),
    ),
)
PLANS = Table(
    "plans",
    "interned plans: the same paths and selector inputs are stored once",
    (
        Column("site_offset", "u8", "into plan_sites"),
        Column("site_count", "u4", "sites"),
    ),
)
PLAN_SITES = Table(
    "plan_sites",
    "one row per site of a plan, in execution order",
    (
        Column("site_string", "u4", "module path"),
        Column("operation_string", "u4", "linear, head, expert, attention"),
        Column("path_string", "u4", "kernel path"),
        Column("decided_by_string", "u4", "rule that chose it"),
        Column("dtype_string", "u4", "activation dtype"),
        Column("model_string", "u4", "target or draft"),
        Column("rows", "u4", "rows of the call"),
        Column("input_size", "u4", "K"),
        Column("output_size", "u4", "N"),
        Column("bits", "u2", "0 for dense"),
        Column("group_size", "u2", "0 for dense"),
    ),
)
SAMPLED = Table(
    "sampled",
    "one row per logits row",
    (
        Column("step", "u4", "step number"),
        Column("request", "u4", "row in requests"),
        Column("position", "u4", "position of the token decided here"),
        Column("row", "u4", "packed row in the step"),
        Column("chosen", "u4", "token id that the logits gave"),
        Column("committed_token", "u4", "token id that the request went on with: another one only in a playback"),
        Column("committed", "u1", "0: behind a rejected draft token, or no token was possible"),
        Column("random_number", "f8", "uniform draw, NaN when greedy"),
        Column(
            "top_ids",
            "u4",
            "ids of the largest raw logits, largest first, lowest id first on ties",
            "top_k",
            Level.LOGITS,
        ),
        Column("top_values", "f4", "their raw logits", "top_k", Level.LOGITS),
        Column("processed_top_ids", "u4", "the same after penalties and bias", "top_k", Level.LOGITS),
        Column("processed_top_values", "f4", "their processed logits", "top_k", Level.LOGITS),
        Column("log_sum_exp", "f8", "of the raw logits, natural logarithm", level=Level.LOGITS),
        Column("chosen_logit", "f4", "processed logit of the chosen token", level=Level.LOGITS),
        Column("gap", "f4", "processed top-1 minus top-2", level=Level.LOGITS),
        Column("logits_hash", "u8", "hash of the whole raw logits row", level=Level.LOGITS),
    ),
)
ROWS = Table(
    "rows",
    "one row per packed row of the target model, in execution order",
    (
        Column("step", "u4", "step number"),
        Column("row", "u4", "packed row in the step"),
        Column("request", "u4", "row in requests"),
        Column("position", "u4", "position"),
        Column("digest", "u8", "hash over the row's hashes of every layer", level=Level.KV),
        Column("key_hash", "u8", "hash of the K row's bytes", "layers", Level.KV),
        Column("value_hash", "u8", "hash of the V row's bytes", "layers", Level.KV),
        Column("key_magnitude", "f4", "largest absolute value", "layers", Level.KV),
        Column("value_magnitude", "f4", "largest absolute value", "layers", Level.KV),
    ),
)
DRAFTS = Table(
    "drafts",
    "one row per request and step that speculated",
    (
        Column("step", "u4", "step number"),
        Column("request", "u4", "row in requests"),
        Column("first_position", "u4", "position of the first proposal"),
        Column("proposed_offset", "u8", "into token_lists"),
        Column("proposed_count", "u4", "proposals"),
        Column("accepted_tokens", "u4", "accepted proposals"),
        Column("next_token", "i8", "replacement or bonus token, -1 when none"),
        Column("drafter_string", "u4", "name of the drafter"),
    ),
)
EVENTS = Table(
    "events",
    "admissions, preemptions, cancellations, ends",
    (
        Column("step", "u4", "step number"),
        Column("request", "u4", "row in requests"),
        Column("kind_string", "u4", "admitted, preempted, finished, cancelled, refused, timed_out, failed"),
        Column("position", "u4", "positions computed at that moment"),
        Column("detail_string", "u4", "free text"),
    ),
)
REUSED = Table(
    "reused",
    "KV rows that a request read without computing them, and who wrote them",
    (
        Column("step", "u4", "step in which the request took them"),
        Column("request", "u4", "reader, row in requests"),
        Column("position", "u4", "position"),
        Column("writer_request", "u4", "row in requests"),
        Column("writer_step", "u4", "step"),
        Column("writer_row", "u4", "packed row"),
    ),
)
AUDITS = Table(
    "audits",
    "KV rows whose bytes were not what was written",
    (
        Column("step", "u4", "step that read it"),
        Column("request", "u4", "reader, row in requests"),
        Column("position", "u4", "position"),
        Column("layer", "u4", "layer"),
        Column("kind_string", "u4", "changed, never_written"),
        Column("expected_hash", "u8", "hash at writing, 0 when never written"),
        Column("found_hash", "u8", "hash at reading"),
    ),
)

DRAFT_FORWARDS = Table(
    "draft_forwards",
    "one row per packed forward of the draft model",
    (
        Column("step", "u4", "step number"),
        Column("forward", "u4", "number of the forward in its step, from 0"),
        Column("plan", "u4", "row in plans"),
        Column("packed_rows", "u4", "rows of the forward"),
        Column("segment_offset", "u8", "into draft_segments"),
        Column("segment_count", "u4", "segments"),
        Column("row_offset", "u8", "into draft_rows"),
    ),
)
DRAFT_SEGMENTS = Table(
    "draft_segments",
    "one row per segment of a draft forward, in row order",
    (
        *(column for column in SEGMENTS.columns if column.name not in ("cached_tokens", "proposed_tokens")),
        Column("forward", "u4", "number of the forward in its step, from 0"),
    ),
)
DRAFT_ROWS = Table(
    "draft_rows",
    "one row per packed row of the draft model, in execution order",
    (
        Column("step", "u4", "step number"),
        Column("forward", "u4", "number of the forward in its step, from 0"),
        Column("row", "u4", "packed row in the forward"),
        Column("request", "u4", "row in requests"),
        Column("position", "u4", "position"),
        Column("digest", "u8", "hash over the row's hashes of every layer", level=Level.KV),
        Column("layer_offset", "u8", "into draft_layers", level=Level.KV),
        Column("layer_count", "u4", "layers of the draft model", level=Level.KV),
    ),
)
DRAFT_LAYERS = Table(
    "draft_layers",
    "K/V of draft rows, layer by layer, one row after another",
    (
        Column("key_hash", "u8", "hash of the K row's bytes", level=Level.KV),
        Column("value_hash", "u8", "hash of the V row's bytes", level=Level.KV),
        Column("key_magnitude", "f4", "largest absolute value", level=Level.KV),
        Column("value_magnitude", "f4", "largest absolute value", level=Level.KV),
    ),
)
TENSORS = Table(
    "tensors",
    "whole arrays, kept at level tensors only",
    (
        Column("step", "u4", "step number", level=Level.TENSORS),
        Column(
            "site_string", "u4", "module path, or `kv.<layer>.keys`, `kv.<layer>.values`, `logits`", level=Level.TENSORS
        ),
        Column("dtype_string", "u4", "element type; bfloat16 is stored as its 16-bit patterns", level=Level.TENSORS),
        Column("trigger_string", "u4", "why it was kept: asked, gap, not_finite, audit", level=Level.TENSORS),
        Column("shape_offset", "u8", "into tensor_shapes", level=Level.TENSORS),
        Column("shape_count", "u4", "axes", level=Level.TENSORS),
        Column("bytes_offset", "u8", "into tensor_bytes", level=Level.TENSORS),
        Column("bytes_count", "u8", "bytes, little-endian, row-major", level=Level.TENSORS),
    ),
)
TENSOR_SHAPES = Table(
    "tensor_shapes",
    "shapes of all tensors, one after another",
    (Column("value", "u8", "elements along one axis", level=Level.TENSORS),),
)
TENSOR_BYTES = Table(
    "tensor_bytes", "bytes of all tensors, one after another", (Column("value", "u1", "byte", level=Level.TENSORS),)
)
FLUSHES = Table(
    "flushes",
    "one row per flush: how much of every table is complete and consistent",
    (
        Column("lengths", "u8", "rows of every table, in the order of the header's `tables`", "tables"),
        Column("checksum", "u8", "xxh3_64 of this row's lengths as little-endian bytes"),
    ),
)
FOOTER = Table(
    "footer",
    "one row, written when the run ended and the file was closed; no row when it ended early",
    (
        Column("interrupted", "u1", "1 after Ctrl-C"),
        Column("failure_offset", "u8", "sentence of the error that ended the run, into string_bytes"),
        Column("failure_count", "u4", "bytes of it, 0 when no error did"),
        Column("step_count", "u8", "steps"),
    ),
)

TABLES = (
    STRINGS, STRING_BYTES, TOKEN_LISTS, TOKEN_TEXTS, TOKEN_TEXT_BYTES, REQUESTS, COMPLETIONS, STEPS, SEGMENTS, PLANS,
    PLAN_SITES, SAMPLED, ROWS, DRAFTS, EVENTS, REUSED, AUDITS, DRAFT_FORWARDS, DRAFT_SEGMENTS, DRAFT_ROWS, DRAFT_LAYERS,
    TENSORS, TENSOR_SHAPES, TENSOR_BYTES, FOOTER,
)  # fmt: skip
