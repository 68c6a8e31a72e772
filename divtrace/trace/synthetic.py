"""Writes long synthetic traces through the real writer, for measuring readers: `write_synthetic(path, rows)`.

Must not know the engine: rows are made up, but every table agrees with the others, so that `check_trace` finds nothing.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from divtrace.recorder.hashing import digest_rows, digest_step
from divtrace.trace.header import Header
from divtrace.trace.schema import Level
from divtrace.trace.writer import TraceWriter

REQUESTS = 8
STEPS_PER_BLOCK = 512
TOP_K = 8
VOCABULARY_SIZE = 1024
Numbers = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


def write_synthetic(path: Path, rows: int, layers: int = 30, changed_row: int | None = None) -> Path:
    """Record `rows` decode rows of eight requests, `changed_row` with another K hash in its last layer.

    The same arguments give the same content, so two traces differ in exactly the row that differs in the call.
    """
    header = Header(
        level=Level.KV,
        layers=layers,
        kv_heads=3,
        head_size=64,
        vocabulary_size=VOCABULARY_SIZE,
        top_k=TOP_K,
        settings={},
        environment={},
        weights_hash="synthetic",
        tokenizer_hash="synthetic",
    )
    steps = rows // REQUESTS
    with TraceWriter(path, header, flush_steps=1 << 30, flush_seconds=float("inf")) as writer:
        _append_requests(writer)
        fed: Numbers = np.arange(REQUESTS)  # the prompts
        for first in range(0, steps, STEPS_PER_BLOCK):
            fed = _append_steps(writer, first, min(first + STEPS_PER_BLOCK, steps), fed, changed_row)
            writer.flush()
    return path


def _append_strings(writer: TraceWriter, texts: list[str]) -> None:
    for text in texts:
        raw = np.frombuffer(text.encode(), np.uint8)
        offset = writer.append("string_bytes", {"value": raw})
        writer.append_row("strings", offset=offset, count=len(raw))


def _append_requests(writer: TraceWriter) -> None:
    _append_strings(writer, [f"request-{number}" for number in range(REQUESTS)])
    _append_strings(
        writer, ['{"sampling": {"temperature": 0}}', "model.site", "linear", "gemv", "synthetic", "float32"]
    )
    _append_strings(writer, ["target"])
    writer.append_row("plans", site_offset=0, site_count=1)
    names = ("site", "operation", "path", "decided_by", "dtype", "model")
    texts = {f"{name}_string": REQUESTS + 1 + index for index, name in enumerate(names)}
    writer.append_row("plan_sites", **texts, rows=REQUESTS, input_size=64, output_size=64, bits=0, group_size=0)
    for number in range(REQUESTS):
        offset = writer.append("token_lists", {"value": [number]})
        writer.append_row(
            "requests",
            id_string=number,
            submitted_step=0,
            prompt_offset=offset,
            prompt_count=1,
            settings_string=REQUESTS,
        )


def _append_steps(writer: TraceWriter, first: int, last: int, fed: Numbers, changed_row: int | None) -> Numbers:
    """Steps `first .. last`: each one decodes one row of every request at position = step.

    `fed` are the requests' tokens at position `first`; returns those at position `last`.
    """
    count = (last - first) * REQUESTS
    step = np.repeat(np.arange(first, last), REQUESTS)
    request = np.tile(np.arange(REQUESTS), last - first)
    within = {"step": step, "request": request}
    generator = np.random.default_rng(first)
    chosen = generator.integers(0, VOCABULARY_SIZE, count)
    tokens = writer.append("token_lists", {"value": np.concatenate([fed, chosen])[:count]})
    writer.append(
        "segments",
        within
        | {name: np.zeros(count) for name in ("cached_tokens", "proposed_tokens")}
        | {name: np.ones(count) for name in ("kind", "rows", "wanted_logits")}
        | {"first_position": step, "first_row": request, "token_offset": tokens + np.arange(count)},
    )
    _append_sampled(writer, within, chosen, generator)
    digest = _append_rows(writer, within, first * REQUESTS, changed_row, generator)
    _append_step_rows(writer, first, last, digest)
    return chosen[count - REQUESTS :]


def _append_sampled(
    writer: TraceWriter,
    within: dict[str, Numbers],
    chosen: Numbers,
    generator: np.random.Generator,
) -> None:
    count = len(chosen)
    ids = (chosen[:, None] + np.arange(TOP_K)) % VOCABULARY_SIZE
    values = 20 - np.arange(TOP_K) - generator.random((count, 1), np.float32)
    writer.append(
        "sampled",
        within
        | {"position": within["step"] + 1, "row": within["request"], "committed": np.ones(count)}
        | {"chosen": chosen, "committed_token": chosen}
        | {"random_number": np.full(count, np.nan), "log_sum_exp": values[:, 0] + 0.5, "chosen_logit": values[:, 0]}
        | {"gap": values[:, 0] - values[:, 1], "logits_hash": _hashes(generator, (count,))}
        | {"top_ids": ids, "processed_top_ids": ids, "top_values": values, "processed_top_values": values},
    )


def _append_rows(
    writer: TraceWriter,
    within: dict[str, Numbers],
    first_row: int,
    changed_row: int | None,
    generator: np.random.Generator,
) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    shape = (len(within["step"]), writer.header.layers)
    keys, values = _hashes(generator, shape), _hashes(generator, shape)
    if changed_row is not None and first_row <= changed_row < first_row + shape[0]:
        keys[changed_row - first_row, -1] += 1
    digest = digest_rows(keys, values)
    magnitudes = generator.random(shape, np.float32)
    writer.append(
        "rows",
        within
        | {"row": within["request"], "position": within["step"], "digest": digest}
        | {"key_hash": keys, "value_hash": values, "key_magnitude": magnitudes, "value_magnitude": magnitudes},
    )
    return digest


def _append_step_rows(
    writer: TraceWriter, first: int, last: int, digest: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]
) -> None:
    steps = np.arange(first, last)
    eights = ("packed_rows", "head_rows", "segment_count", "sampled_count", "running")
    zeros = ("plan", "waiting", "blocks_used", "blocks_cached", "blocks_total", "flags")
    times = ("schedule_s", "draft_s", "forward_s", "sample_s")
    writer.append(
        "steps",
        {"step": steps, "max_query_length": np.ones(len(steps)), "max_key_length": steps + 1}
        | {name: np.full(len(steps), REQUESTS) for name in eights}
        | {name: np.zeros(len(steps)) for name in (*zeros, *times)}
        | dict.fromkeys(("segment_offset", "row_offset", "sampled_offset"), steps * REQUESTS)
        | {"digest": [digest_step(part) for part in digest.reshape(-1, REQUESTS)]},
    )


def _hashes(generator: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    return generator.integers(0, 1 << 64, shape, np.uint64)
