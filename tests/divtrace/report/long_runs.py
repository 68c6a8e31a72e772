"""Two long runs written column by column: some ten thousand steps and a hundred requests in a second or two.

`slots` requests run at once; the next one starts where one ends. Request 7 flips in run B, after its rows began to differ.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from divtrace.trace.header import Header
from divtrace.trace.schema import Level
from divtrace.trace.writer import TraceWriter

REQUESTS = 100
PROMPT_TOKENS = 24
LAYERS = 3
TOP_K = 4
FLIPPING_REQUEST = 7
DRIFT_FROM = 100
FLIP_AT = 260


@dataclass
class _Columns:
    """Rows of one table, collected."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, **values: Any) -> None:
        self.rows.append(values)

    def columns(self) -> dict[str, list[Any]]:
        return {name: [row[name] for row in self.rows] for name in self.rows[0]}


def write_long_run(path: Path, slots: int, is_b: bool, mean_outputs: int = 1000) -> Path:
    """Record one run; `is_b` brings the drift and the flip of request 7."""
    header = Header(
        level=Level.KV, layers=LAYERS, kv_heads=1, head_size=4, vocabulary_size=50, top_k=TOP_K,
        settings={"max_active": slots, "policy": "threshold:16"}, environment={}, weights_hash="w", tokenizer_hash="t",
    )  # fmt: skip
    outputs = np.random.default_rng(1).integers(mean_outputs // 2, mean_outputs * 3 // 2, REQUESTS)
    with TraceWriter(path, header, overwrite=True, flush_steps=10**9, flush_seconds=1e9) as writer:
        strings = _strings(writer)
        starts = _requests(writer, strings, outputs)
        _plans(writer, strings)
        _steps(writer, strings, starts, outputs, slots, is_b)
    return path


def _strings(writer: TraceWriter) -> dict[str, int]:
    texts = ["{}", "model.layers.0.mlp.up_proj", "linear", "gemv", "gemm", "threshold:16", "float32", "target", ""]
    texts += ["admitted", "finished", "length", *(f"request-{number}" for number in range(REQUESTS))]
    rows = {}
    for text in texts:
        raw = np.frombuffer(text.encode(), np.uint8)
        offset = writer.append("string_bytes", {"value": raw}) if raw.size else 0
        rows[text] = writer.append_row("strings", offset=offset, count=raw.size)
    for token in range(50):
        raw = np.frombuffer(f" word{token}".encode(), np.uint8)
        offset = writer.append("token_text_bytes", {"value": raw})
        writer.append_row("token_texts", token=token, offset=offset, count=raw.size)
    return rows


def _requests(writer: TraceWriter, strings: dict[str, int], outputs: np.ndarray) -> list[int]:
    starts = []
    for number in range(REQUESTS):
        tokens = np.random.default_rng(number).integers(0, 50, PROMPT_TOKENS + int(outputs[number]))
        starts.append(writer.append("token_lists", {"value": tokens}))
        writer.append_row(
            "requests", id_string=strings[f"request-{number}"], submitted_step=0, prompt_offset=starts[-1],
            prompt_count=PROMPT_TOKENS, settings_string=strings["{}"],
        )  # fmt: skip
    return starts


def _plans(writer: TraceWriter, strings: dict[str, int]) -> None:
    for place, path in enumerate(("gemv", "gemm")):
        writer.append_row(
            "plan_sites", site_string=strings["model.layers.0.mlp.up_proj"], operation_string=strings["linear"],
            path_string=strings[path], decided_by_string=strings["threshold:16"], dtype_string=strings["float32"],
            model_string=strings["target"], rows=1 + place * 40, input_size=4, output_size=4, bits=0, group_size=0,
        )  # fmt: skip
        writer.append_row("plans", site_offset=place, site_count=1)


def _steps(
    writer: TraceWriter, strings: dict[str, int], starts: list[int], outputs: np.ndarray, slots: int, is_b: bool
) -> None:
    steps, segments, rows, sampled, events = (_Columns() for _ in range(5))
    waiting, running = deque(range(REQUESTS)), dict.fromkeys((), 0)
    tokens = [np.random.default_rng(n).integers(0, 50, PROMPT_TOKENS + int(outputs[n])) for n in range(REQUESTS)]
    step = 0
    while waiting or running:
        while waiting and len(running) < slots:
            running[waiting.popleft()] = 0
            events.add(
                step=step,
                request=list(running)[-1],
                kind_string=strings["admitted"],
                position=0,
                detail_string=strings[""],
            )
        first_row, first_segment, first_record = 0, len(segments.rows), len(rows.rows)
        first_sampled = len(sampled.rows)
        is_origin = is_b and running.get(FLIPPING_REQUEST) == DRIFT_FROM - PROMPT_TOKENS + 1
        for request, done in list(running.items()):
            count = PROMPT_TOKENS if done == 0 else 1
            position = 0 if done == 0 else PROMPT_TOKENS + done - 1
            segments.add(
                step=step, request=request, kind=0 if done == 0 else 1, first_position=position, rows=count,
                first_row=first_row, cached_tokens=0, wanted_logits=1, proposed_tokens=0,
                token_offset=starts[request] + position,
            )  # fmt: skip
            for row in range(count):
                _row(rows, step, first_row + row, request, position + row, is_b)
            _decision(sampled, step, first_row + count - 1, request, position + count, tokens[request], is_b)
            first_row += count
            running[request] += 1
            if running[request] == outputs[request]:
                del running[request]
                events.add(
                    step=step,
                    request=request,
                    kind_string=strings["finished"],
                    position=0,
                    detail_string=strings["length"],
                )
                _complete(writer, strings, step, request, starts[request] + PROMPT_TOKENS, int(outputs[request]))
        steps.add(
            step=step, packed_rows=first_row, head_rows=len(sampled.rows) - first_sampled, max_query_length=PROMPT_TOKENS,
            max_key_length=100, plan=int(first_row > 16 or is_origin), segment_offset=first_segment,
            segment_count=len(segments.rows) - first_segment, row_offset=first_record, sampled_offset=first_sampled,
            sampled_count=len(sampled.rows) - first_sampled, running=len(running), waiting=len(waiting), blocks_used=0,
            blocks_cached=0, blocks_total=0, schedule_s=1e-5, draft_s=0.0, forward_s=1e-3, sample_s=1e-5, flags=0, digest=0,
        )  # fmt: skip
        step += 1
    for table, found in (
        ("steps", steps),
        ("segments", segments),
        ("rows", rows),
        ("sampled", sampled),
        ("events", events),
    ):
        writer.append(table, found.columns())


def _row(rows: _Columns, step: int, row: int, request: int, position: int, is_b: bool) -> None:
    differs = is_b and request == FLIPPING_REQUEST and position >= DRIFT_FROM
    same = request * 100_003 + position
    # Only the first differing row differs in layer 0, from equal inputs; the later ones carry what they read.
    first_layer = same + (1 << 50) if differs and position == DRIFT_FROM else same
    hashes = [first_layer, *([same + (1 << 50) if differs else same] * (LAYERS - 1))]
    moved = 1e-5 * (1 + position % 17) if differs else 0.0
    rows.add(
        step=step, row=row, request=request, position=position, digest=hashes[-1], key_hash=hashes, value_hash=hashes,
        key_magnitude=[1.0 + moved] * LAYERS, value_magnitude=[1.0] * LAYERS,
    )  # fmt: skip


def _decision(
    sampled: _Columns, step: int, row: int, request: int, position: int, tokens: np.ndarray, is_b: bool
) -> None:
    chosen = int(tokens[position])
    drifts = is_b and request == FLIPPING_REQUEST and position > DRIFT_FROM
    gap = 0.5 + (position * 7919 % 100) / 50
    if request == FLIPPING_REQUEST and position == FLIP_AT:
        gap = 1e-4
        chosen = (chosen + 1) % 50 if is_b else chosen
    elif is_b and request == FLIPPING_REQUEST and position > FLIP_AT:
        chosen = (chosen + 3) % 50
    other = (chosen + 49) % 50 if is_b and position == FLIP_AT else (chosen + 1) % 50
    ids = [chosen, other, (chosen + 5) % 50, (chosen + 6) % 50]
    values = [9.0 + 1e-3 * drifts, 9.0 - gap + 3e-4 * drifts, 2.0, 1.0]
    sampled.add(
        step=step, request=request, position=position, row=row, chosen=chosen, committed=1, random_number=np.nan,
        top_ids=ids, top_values=values, processed_top_ids=ids, processed_top_values=values, log_sum_exp=9.0,
        chosen_logit=values[0], gap=gap, logits_hash=request * 100_003 + position + (1 << 50 if drifts else 0),
    )  # fmt: skip


def _complete(writer: TraceWriter, strings: dict[str, int], step: int, request: int, offset: int, count: int) -> None:
    writer.append_row(
        "completions", request=request, step=step, output_offset=offset, output_count=count,
        reason_string=strings["length"], detail_string=strings[""], queued_s=0.0, scheduled_s=0.0, first_token_s=0.0,
        finished_s=1.0,
    )  # fmt: skip
