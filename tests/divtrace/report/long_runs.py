"""Two long runs written column by column: some ten thousand steps and a hundred requests in a few seconds.

`slots` requests run at once; the next one starts where one ends. In run B the K/V of request 7 differs from position
100 on, first in layer 0 and then in what was computed from it, and its token at position 260 flips.
"""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path
from typing import Any

import numpy as np

from divtrace.trace.header import Header
from divtrace.trace.schema import Level
from divtrace.trace.writer import TraceWriter

REQUESTS = 100
PROMPT_TOKENS = 24
LAYERS = 3
VOCABULARY_SIZE = 50
FLIPPING_REQUEST = 7
DRIFT_FROM = 100
FLIP_AT = 260
OTHER_BITS = 1 << 50
TEXTS = (
    ["{}", "model.layers.0.mlp.up_proj", "linear", "gemv", "gemm", "threshold:16", "float32", "target", ""]
    + ["admitted", "finished", "length"]
    + [f"request-{number}" for number in range(REQUESTS)]
)


def write_long_run(path: Path, slots: int, is_b: bool, mean_outputs: int = 1000) -> Path:
    """Record one run of about `100 * mean_outputs / slots` steps; `is_b` brings the drift and the flip."""
    header = Header(
        level=Level.KV,
        layers=LAYERS,
        kv_heads=1,
        head_size=4,
        vocabulary_size=VOCABULARY_SIZE,
        top_k=4,
        settings={"max_active": slots, "policy": "threshold:16"},
        environment={},
        weights_hash="w",
        tokenizer_hash="t",
    )
    with TraceWriter(path, header, overwrite=True, flush_steps=10**9, flush_seconds=1e9) as writer:
        _LongRun(writer, slots, is_b, mean_outputs).write()
    return path


class _LongRun:
    """Collects rows of tables and appends them at once."""

    def __init__(self, writer: TraceWriter, slots: int, is_b: bool, mean_outputs: int) -> None:
        self.writer, self.slots, self.is_b = writer, slots, is_b
        outputs = np.random.default_rng(1).integers(mean_outputs // 2, mean_outputs * 3 // 2, REQUESTS)
        self.outputs: list[int] = outputs.tolist()
        self.tokens: list[list[int]] = [
            np.random.default_rng(number).integers(0, VOCABULARY_SIZE, PROMPT_TOKENS + count).tolist()
            for number, count in enumerate(self.outputs)
        ]
        self.token_offsets: list[int] = []
        self.rows: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def write(self) -> None:
        """Write everything."""
        self._strings()
        self._requests()
        self._plans()
        waiting, running, step = deque(range(REQUESTS)), dict[int, int](), 0
        while waiting or running:
            while waiting and len(running) < self.slots:
                request = waiting.popleft()
                running[request] = 0
                self._event(step, request, "admitted")
            self._step(step, running, len(waiting))
            step += 1
        for table, rows in self.rows.items():
            self.writer.append(table, {name: [row[name] for row in rows] for name in rows[0]})

    def _strings(self) -> None:
        for table, texts in (("strings", TEXTS), ("token_texts", [f" word{n}" for n in range(VOCABULARY_SIZE)])):
            target = "string_bytes" if table == "strings" else "token_text_bytes"
            for number, text in enumerate(texts):
                raw = np.frombuffer(text.encode(), np.uint8)
                offset = self.writer.append(target, {"value": raw}) if raw.size else 0
                own = {} if table == "strings" else {"token": number}
                self.writer.append_row(table, **own, offset=offset, count=raw.size)

    def _requests(self) -> None:
        for number, tokens in enumerate(self.tokens):
            offset = self.writer.append("token_lists", {"value": tokens})
            self.token_offsets.append(offset)
            place = {"prompt_offset": offset, "prompt_count": PROMPT_TOKENS, "settings_string": TEXTS.index("{}")}
            name = TEXTS.index(f"request-{number}")
            self.writer.append_row("requests", id_string=name, submitted_step=0, **place)

    def _plans(self) -> None:
        names = {"site": TEXTS[1], "operation": "linear", "decided_by": "threshold:16", "dtype": "float32"}
        shared = {f"{name}_string": TEXTS.index(text) for name, text in (names | {"model": "target"}).items()}
        sizes = {"input_size": 4, "output_size": 4, "bits": 0, "group_size": 0}
        for place, path in enumerate(("gemv", "gemm")):
            rows = 1 + place * 40
            self.writer.append_row("plan_sites", **shared, path_string=TEXTS.index(path), rows=rows, **sizes)
            self.writer.append_row("plans", site_offset=place, site_count=1)

    def _step(self, step: int, running: dict[int, int], waiting: int) -> None:
        firsts = {table: len(self.rows[table]) for table in ("segments", "rows", "sampled")}
        is_origin = self.is_b and running.get(FLIPPING_REQUEST) == DRIFT_FROM - PROMPT_TOKENS + 1
        packed = 0
        for request, done in list(running.items()):
            packed += self._segment(step, request, done, packed)
            running[request] += 1
            if running[request] == self.outputs[request]:
                del running[request]
                self._complete(step, request)
        segments = len(self.rows["segments"]) - firsts["segments"]
        zeros = dict.fromkeys(("blocks_used", "blocks_cached", "blocks_total", "flags", "digest", "draft_s"), 0)
        self.rows["steps"].append(
            zeros
            | {"step": step, "packed_rows": packed, "head_rows": segments, "max_query_length": PROMPT_TOKENS}
            | {"max_key_length": 100, "plan": int(packed > 16 or is_origin), "segment_offset": firsts["segments"]}
            | {"segment_count": segments, "row_offset": firsts["rows"], "sampled_offset": firsts["sampled"]}
            | {"sampled_count": segments, "running": len(running), "waiting": waiting}
            | {"schedule_s": 1e-5, "forward_s": 1e-3, "sample_s": 1e-5}
        )

    def _segment(self, step: int, request: int, done: int, first_row: int) -> int:
        rows = PROMPT_TOKENS if done == 0 else 1
        position = 0 if done == 0 else PROMPT_TOKENS + done - 1
        self.rows["segments"].append(
            {"step": step, "request": request, "kind": int(done > 0), "first_position": position, "rows": rows}
            | {"first_row": first_row, "cached_tokens": 0, "wanted_logits": 1, "proposed_tokens": 0}
            | {"token_offset": self.token_offsets[request] + position}
        )
        for row in range(rows):
            self._row(step, first_row + row, request, position + row)
        self._decision(step, first_row + rows - 1, request, position + rows)
        return rows

    def _row(self, step: int, row: int, request: int, position: int) -> None:
        differs = self.is_b and request == FLIPPING_REQUEST and position >= DRIFT_FROM
        same = request * 100_003 + position
        other = same + OTHER_BITS if differs else same
        # Only the first differing row differs in layer 0, from equal inputs; the later ones carry what they read.
        hashes = [other if position == DRIFT_FROM else same, *[other] * (LAYERS - 1)]
        moved = 1e-5 * (1 + position % 17) if differs else 0.0
        self.rows["rows"].append(
            {"step": step, "row": row, "request": request, "position": position, "digest": hashes[-1]}
            | {"key_hash": hashes, "value_hash": hashes}
            | {"key_magnitude": [1.0 + moved] * LAYERS, "value_magnitude": [1.0] * LAYERS}
        )

    def _decision(self, step: int, row: int, request: int, position: int) -> None:
        is_ours = request == FLIPPING_REQUEST
        drifts = self.is_b and is_ours and position > DRIFT_FROM
        flips = is_ours and position == FLIP_AT
        token = self.tokens[request][position]
        shift = (1 if flips else 3 if position > FLIP_AT else 0) if self.is_b and is_ours else 0
        chosen = (token + shift) % VOCABULARY_SIZE
        second = token if flips and self.is_b else (chosen + 1) % VOCABULARY_SIZE
        gap = 1e-4 if flips else 0.5 + (position * 7919 % 100) / 50
        ids = [chosen, second, (chosen + 5) % VOCABULARY_SIZE, (chosen + 6) % VOCABULARY_SIZE]
        values = [9.0 + 1e-3 * drifts, 9.0 - gap + 3e-4 * drifts, 2.0, 1.0]
        self.rows["sampled"].append(
            {"step": step, "request": request, "position": position, "row": row, "chosen": chosen, "committed": 1}
            | {"committed_token": chosen}
            | {"random_number": np.nan, "log_sum_exp": 9.0, "chosen_logit": values[0], "gap": values[0] - values[1]}
            | {"top_ids": ids, "top_values": values, "processed_top_ids": ids, "processed_top_values": values}
            | {"logits_hash": request * 100_003 + position + (OTHER_BITS if drifts else 0)}
        )

    def _complete(self, step: int, request: int) -> None:
        self._event(step, request, "finished")
        times = dict.fromkeys(("queued_s", "scheduled_s", "first_token_s", "finished_s"), 0.0)
        place = {"output_offset": self.token_offsets[request] + PROMPT_TOKENS, "output_count": self.outputs[request]}
        reason = {"reason_string": TEXTS.index("length"), "detail_string": TEXTS.index("")}
        self.rows["completions"].append({"request": request, "step": step} | place | reason | times)

    def _event(self, step: int, request: int, kind: str) -> None:
        words = {"kind_string": TEXTS.index(kind), "detail_string": TEXTS.index("")}
        self.rows["events"].append({"step": step, "request": request, "position": 0} | words)
