"""What recording costs per row, and what a row takes on disk, at every level: `python -m divtrace.trace.bench`.

Synthetic steps with the shapes of a real model go through the real recorder; nothing is computed but the recording.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from divtrace.recorder.recorder import Recorder
from divtrace.trace.schema import Level
from engine.batch import Batch, Segment, SegmentKind
from engine.observer import (
    LayerRows,
    Plan,
    QueueState,
    RunEnding,
    RunInfo,
    SampledRow,
    SiteChoice,
    StepEvent,
    StepTimings,
)
from engine.request import Request


@dataclass(frozen=True, slots=True)
class Shape:
    """A model and a load: `requests` prefill `prompt_tokens` each, then decode together for `decode_steps`."""

    layers: int = 30
    kv_heads: int = 3
    head_size: int = 64
    vocabulary_size: int = 49152
    linears_per_layer: int = 7
    requests: int = 8
    prompt_tokens: int = 64
    decode_steps: int = 128

    @property
    def packed_rows(self) -> int:
        """Rows of the whole run."""
        return self.requests * (self.prompt_tokens + self.decode_steps)


@dataclass(frozen=True, slots=True)
class Measurement:
    """Processor time of recording per row of decode and prefill steps, and file bytes per row."""

    level: Level
    decode_us_per_row: float
    prefill_us_per_row: float
    bytes_per_row: float


def measure(shape: Shape, level: Level, folder: Path) -> Measurement:
    """Record one synthetic run; times are means over steps, flushes included."""
    path = folder / f"{level}-{shape.requests}-{shape.layers}.h5"
    recorder = Recorder(path, level, overwrite=True)
    recorder.run_started(run_info(shape))
    for number in range(shape.requests):
        tokens = tuple(np.random.default_rng(number).integers(0, shape.vocabulary_size, shape.prompt_tokens))
        recorder.request_submitted(Request(f"request-{number}", tuple(map(int, tokens)), shape.decode_steps), 0)
    spent_s: dict[SegmentKind, list[float]] = {SegmentKind.PREFILL: [], SegmentKind.DECODE: []}
    for event in _events(shape):
        began = time.process_time()
        recorder.step_finished(event)
        kind = event.batch.segments[0].kind
        spent_s[kind].append((time.process_time() - began) / event.batch.packed_rows)
    recorder.run_finished(RunEnding())
    return Measurement(
        level,
        1e6 * float(np.mean(spent_s[SegmentKind.DECODE])),
        1e6 * float(np.mean(spent_s[SegmentKind.PREFILL])),
        path.stat().st_size / shape.packed_rows,
    )


def _events(shape: Shape) -> Iterator[StepEvent]:
    generator = np.random.default_rng(0)
    for step in range(shape.requests + shape.decode_steps):
        if step < shape.requests:
            tokens = tuple(map(int, generator.integers(0, shape.vocabulary_size, shape.prompt_tokens)))
            specs = [(step, SegmentKind.PREFILL, 0, tokens)]
        else:
            position = shape.prompt_tokens + step - shape.requests
            drawn = generator.integers(0, shape.vocabulary_size, shape.requests)
            specs = [(n, SegmentKind.DECODE, position, (int(token),)) for n, token in enumerate(drawn)]
        yield _event(shape, step, specs, generator)


def _event(
    shape: Shape,
    step: int,
    specs: list[tuple[int, SegmentKind, int, tuple[int, ...]]],
    generator: np.random.Generator,
) -> StepEvent:
    segments = []
    first_row = 0
    for number, kind, position, tokens in specs:
        segments.append(Segment(f"request-{number}", kind, position, tokens, first_row, 1))
        first_row += len(tokens)
    batch = Batch(step, tuple(segments))
    logits = generator.standard_normal((len(segments), shape.vocabulary_size), np.float32)
    likely = np.minimum(generator.zipf(1.3, (len(segments), 24)), shape.vocabulary_size - 1)
    logits[np.arange(len(segments))[:, None], likely] += generator.uniform(6, 12, likely.shape).astype(np.float32)
    sampled = tuple(
        SampledRow(s.request_id, s.end_position, s.first_row + s.rows - 1, row, int(logits[row].argmax()))
        for row, s in enumerate(segments)
    )
    kv_shape = (first_row, shape.kv_heads, shape.head_size)
    layers = [
        LayerRows(generator.standard_normal(kv_shape, np.float32), generator.standard_normal(kv_shape, np.float32))
        for _ in range(shape.layers)
    ]
    queue = QueueState(len(segments), 0, 0, 0, 0)
    timings = StepTimings(0.001, 0.0, 0.08, 0.001)
    return StepEvent(batch, _plan(shape, first_row), logits, logits, sampled, layers, queue, timings)


@lru_cache
def _plan(shape: Shape, rows: int) -> Plan:
    """One plan per row count: the engine gives the same records step after step, too."""
    linear = SiteChoice("", "linear", "gemv", "threshold:4", rows, 576, 1536, "float32", 4, 32)
    sites = []
    for layer in range(shape.layers):
        names = [f"model.layers.{layer}.projection_{index}" for index in range(shape.linears_per_layer)]
        sites += [replace(linear, site=name) for name in names]
        sites.append(replace(linear, site=f"model.layers.{layer}.self_attn", operation="attention"))
    return tuple(sites)


def run_info(shape: Shape) -> RunInfo:
    return RunInfo(
        settings={},
        environment={},
        weights_hash="",
        tokenizer_hash="",
        layers=shape.layers,
        kv_heads=shape.kv_heads,
        head_size=shape.head_size,
        vocabulary_size=shape.vocabulary_size,
        token_bytes=lambda token: f" token{token}".encode(),
    )


def main() -> None:
    """Print a table: levels, then batch sizes and model depths at level `kv`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--decode-steps", type=int, default=128)
    shape = Shape(decode_steps=parser.parse_args().decode_steps)
    print("level   requests layers  decode us/row  prefill us/row  bytes/row")
    with tempfile.TemporaryDirectory() as folder:
        runs = [(shape, level) for level in (Level.TOKENS, Level.LOGITS, Level.KV)]
        runs += [(replace(shape, requests=requests), Level.KV) for requests in (1, 32)]
        runs += [(replace(shape, layers=layers), Level.KV) for layers in (8, 60)]
        for each, level in runs:
            result = measure(each, level, Path(folder))
            print(
                f"{level:7} {each.requests:8} {each.layers:6} {result.decode_us_per_row:14.1f} "
                f"{result.prefill_us_per_row:15.1f} {result.bytes_per_row:10.0f}"
            )


if __name__ == "__main__":
    main()
