"""What `diff` costs by the length of the traces: `python -m divtrace.divergence.bench --rows 100000 1000000`.

Two synthetic runs go through the real recorder at level kv, of long prefills or (--decode) of a hundred requests that
decode together, each row with its logits; they are equal but for one late K/V row. Each diff runs in a process of its
own, so that its peak memory is its own; the first one, which brings both traces into the page cache, is not counted.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from divtrace.divergence.compare import diff_traces
from divtrace.recorder.recorder import Recorder
from divtrace.trace.bench import Shape, run_info
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from engine.batch import Batch, Segment, SegmentKind
from engine.observer import LayerRows, QueueState, RunEnding, SampledRow, StepEvent, StepTimings
from engine.request import Request

ROWS_A_STEP = 500
STEPS_A_REQUEST = 20
DECODING = 100
SHAPE = Shape(vocabulary_size=64)


def write_run(path: Path, rows: int, late_change: bool, decode: bool) -> None:
    """A run of about `rows` rows; with `late_change`, one element of a row near the end is another one."""
    recorder = Recorder(path, Level.KV, overwrite=True)
    recorder.run_started(run_info(SHAPE))
    if decode:
        steps = max(3, rows // DECODING)
        for number in range(DECODING):
            recorder.request_submitted(Request(f"request-{number}", (number % 64,), steps), 0)
        for event in _decodes(steps, late_change):
            recorder.step_finished(event)
        recorder.run_finished(RunEnding())
        return
    steps = max(3, rows // ROWS_A_STEP)
    for number in range(-(-steps // STEPS_A_REQUEST)):
        prompt = tuple(_tokens(number).tolist())
        recorder.request_submitted(Request(f"request-{number}", prompt, 1), number * STEPS_A_REQUEST)
    for event in _events(steps, late_change):
        recorder.step_finished(event)
    recorder.run_finished(RunEnding())


def _tokens(number: int) -> npt.NDArray[np.int64]:
    random = np.random.default_rng(number)
    return random.integers(0, SHAPE.vocabulary_size, ROWS_A_STEP * STEPS_A_REQUEST)


def _events(steps: int, late_change: bool) -> Iterator[StepEvent]:
    nothing = np.zeros((0, SHAPE.vocabulary_size), np.float32)
    for step, layers in _layers(ROWS_A_STEP, steps, late_change):
        number, chunk = divmod(step, STEPS_A_REQUEST)
        first = chunk * ROWS_A_STEP
        tokens = tuple(_tokens(number)[first : first + ROWS_A_STEP].tolist())
        segment = Segment(f"request-{number}", SegmentKind.PREFILL, first, tokens, 0, 0)
        yield _event(Batch(step, (segment,)), nothing, (), layers)


def _decodes(steps: int, late_change: bool) -> Iterator[StepEvent]:
    random = np.random.default_rng(1)
    tokens = tuple(number % 64 for number in range(DECODING))
    for step, layers in _layers(DECODING, steps, late_change):
        logits = random.standard_normal((DECODING, SHAPE.vocabulary_size), np.float32)
        chosen = tuple(int(token) for token in logits.argmax(axis=1))
        segments = tuple(Segment(f"request-{n}", SegmentKind.DECODE, step, (tokens[n],), n, 1) for n in range(DECODING))
        sampled = tuple(SampledRow(f"request-{n}", step + 1, n, n, chosen[n]) for n in range(DECODING))
        yield _event(Batch(step, segments), logits, sampled, layers)
        tokens = chosen


def _layers(rows: int, steps: int, late_change: bool) -> Iterator[tuple[int, list[LayerRows]]]:
    random = np.random.default_rng(0)
    size = (rows, SHAPE.kv_heads, SHAPE.head_size)
    layers = [
        LayerRows(random.standard_normal(size, np.float32), random.standard_normal(size, np.float32))
        for _ in range(SHAPE.layers)
    ]
    for step in range(steps):
        for layer in layers:
            layer.keys[:, 0, 0] = step
        kept = layers[-1].keys[7, 1, 1]
        if late_change and step == steps - 2:
            layers[-1].keys[7, 1, 1] = kept + 1
        yield step, layers
        layers[-1].keys[7, 1, 1] = kept


def _event(
    batch: Batch, logits: npt.NDArray[np.float32], sampled: tuple[SampledRow, ...], layers: list[LayerRows]
) -> StepEvent:
    queue = QueueState(len(batch.segments), 0, 0, 0, 0)
    return StepEvent(batch, (), logits, logits, sampled, layers, queue, StepTimings(0, 0, 0, 0))


def timed_diff(a: Path, b: Path) -> dict[str, float]:
    """Seconds, peak memory in MiB and differing rows of a diff in this process."""
    started = time.perf_counter()
    with open_trace(a) as left, open_trace(b) as right:
        differing = sum(request.differing_kv_rows for request in diff_traces(left, right).requests)
    elapsed_s = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return {"elapsed_s": elapsed_s, "peak_mib": peak / unit, "differing_rows": differing}


def main() -> None:
    """Write and compare pairs of these lengths."""
    parser = argparse.ArgumentParser(prog="python -m divtrace.divergence.bench", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--decode", action="store_true", help="rows of decode steps, each with its logits")
    parser.add_argument("--one", type=Path, nargs=2, metavar=("A", "B"), help="compare these traces and print JSON")
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(timed_diff(*chosen.one)))
        return
    for rows in chosen.rows:
        with tempfile.TemporaryDirectory() as name:
            paths = [Path(name) / "a.h5", Path(name) / "b.h5"]
            for path, late_change in zip(paths, (False, True), strict=True):
                write_run(path, rows, late_change, chosen.decode)
            command = [sys.executable, "-m", "divtrace.divergence.bench", "--one", *map(str, paths)]
            found = [json.loads(subprocess.run(command, check=True, capture_output=True).stdout) for _ in range(4)][1:]
            best = min(found, key=lambda one: one["elapsed_s"])
            kind, size = "decode" if chosen.decode else "prefill", paths[0].stat().st_size / rows
            print(
                f"{rows} {kind} rows, {size:.0f} bytes a row: {best['elapsed_s']:.2f} s, peak"
                f" {best['peak_mib']:.0f} MiB, differing rows: {best['differing_rows']:.0f} (best of {len(found)})",
                flush=True,
            )


if __name__ == "__main__":
    main()
