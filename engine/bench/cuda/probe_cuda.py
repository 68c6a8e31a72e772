"""Checks the invariant CUDA kernels bit by bit and times them: `python -m engine.bench.cuda.probe_cuda`.

For each shape and type: rows alone against rows in calls of 1 to 512, identical rows at every index, rows beside
NaN, and the distance to float64; then the median time of a call at several row counts beside MLX's own kernel, many
calls evaluated together. MLX compiles a kernel at its first call (its quantized GEMM takes about 90 s), so every call
is made before it is timed. Exit code 1 when any bit differs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial

import click
import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.kernels.invariant import VisibleKeys, cuda
from engine.kernels.invariant.cuda_attention import DeviceKeys, device_keys, paged_attention

ROW_COUNTS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 128, 512)
TIMED_ROWS = (1, 4, 8, 16, 32, 128, 512)
CALLS_TOGETHER = 40
CACHE_BYTES = 240e6
QWEN_7B_SHAPES = "3584x3584,3584x512,3584x18944,18944x3584"
TYPES = {"float16": mx.float16, "bfloat16": mx.bfloat16, "float32": mx.float32}

RowFunction = Callable[[mx.array], mx.array]


@dataclass(frozen=True, slots=True)
class Outcome:
    """One kernel of one shape: row counts and conditions under which a bit moved (none is right), error and times."""

    what: str
    dtype: str
    moved: tuple[str, ...]
    largest_error: float
    ours_us: dict[int, float]
    native_us: dict[int, float]


def bits_of(array: mx.array) -> npt.NDArray[np.uint8]:
    """The bytes of each row."""
    mx.eval(array)
    wide = array.reshape(array.shape[0], -1).view(mx.uint8)
    return np.array(wide)


def moved_bits(function: RowFunction, rows: mx.array) -> tuple[str, ...]:
    """Conditions under which a row's bytes are not those of the row alone."""
    checked = sorted({0, 1, 7, 8, 16, 31, 100, 511} & set(range(rows.shape[0])))
    alone = {index: bits_of(function(rows[index : index + 1]))[0] for index in checked}
    moved = []
    for count in ROW_COUNTS:
        together = bits_of(function(rows[:count]))
        if any((together[index] != alone[index]).any() for index in checked if index < count):
            moved.append(f"{count} rows")
        identical = bits_of(function(mx.contiguous(mx.broadcast_to(rows[:1], (count, rows.shape[1])))))
        if (identical != alone[0]).any():
            moved.append(f"index within {count} rows")
        strange = mx.concatenate([rows[:1], mx.full((count - 1, rows.shape[1]), float("nan"), rows.dtype)])
        if count > 1 and (bits_of(function(strange))[0] != alone[0]).any():
            moved.append(f"NaN beside the row in {count} rows")
    if (bits_of(function(rows)) != bits_of(function(rows))).any():
        moved.append("the same call twice")
    return tuple(moved)


def median_us(functions: Sequence[RowFunction], rows: mx.array, repeats: int = 7) -> float:
    """Median microseconds of a call; all functions (one per copy of the weights) are evaluated together."""
    calls = max(len(functions), CALLS_TOGETHER)
    times = []
    for _ in range(repeats + 2):
        outputs = [functions[index % len(functions)](rows) for index in range(calls)]
        started = time.perf_counter()
        mx.eval(outputs)
        times.append((time.perf_counter() - started) * 1e6 / calls)
    return statistics.median(times[2:])


def _matmul(weight: mx.array, x: mx.array) -> mx.array:
    return x @ weight.T


def _quantized_matmul(parts: Sequence[mx.array], bits: int, x: mx.array) -> mx.array:
    packed, scales, biases = parts
    return mx.quantized_matmul(x, packed, scales, biases, transpose=True, group_size=64, bits=bits)


def _ours(parts: Sequence[mx.array], bits: int, x: mx.array) -> mx.array:
    packed, scales, biases = parts
    return cuda.linear_affine(x, packed, scales, biases, bits=bits, group_size=64)


def linear_outcome(input_size: int, output_size: int, bits: int, dtype: mx.Dtype) -> Outcome:
    """A linear of random weights: ours against MLX's own and float64.

    It is timed over several copies of the weights in turn, more than the second-level cache holds, as layers follow
    each other in a model.
    """
    random = np.random.default_rng(0)
    weight = mx.array((random.standard_normal((output_size, input_size)) * input_size**-0.5).astype(np.float32))
    rows = mx.array(random.standard_normal((512, input_size)).astype(np.float32)).astype(dtype)
    weight_bytes = output_size * input_size * (bits or dtype.size * 8) / 8
    copies = range(max(1, min(64, int(CACHE_BYTES / weight_bytes))))
    if bits == 0:
        dense = weight.astype(dtype)
        weights = [mx.array(dense) for _ in copies]
        ours = [partial(cuda.linear_dense, weight=own) for own in weights]
        native = [partial(_matmul, own) for own in weights]
    else:
        packed = mx.quantize(weight.astype(dtype), 64, bits)
        dense = mx.dequantize(*packed, 64, bits)
        parts = [tuple(mx.array(part) for part in packed) for _ in copies]
        ours = [partial(_ours, own, bits) for own in parts]
        native = [partial(_quantized_matmul, own, bits) for own in parts]
    exact = np.array(rows[:8].astype(mx.float32), np.float64) @ np.array(dense.astype(mx.float32), np.float64).T
    error = np.abs(np.array(ours[0](rows[:8]).astype(mx.float32), np.float64) - exact).max()
    return Outcome(
        what=f"linear {input_size}x{output_size} {f'q{bits}/64' if bits else 'dense'}",
        dtype=str(dtype),
        moved=moved_bits(ours[0], rows),
        largest_error=float(error),
        ours_us={count: median_us(ours, rows[:count]) for count in TIMED_ROWS},
        native_us={count: median_us(native, rows[:count]) for count in TIMED_ROWS},
    )


def attention_outcome(heads: int, kv_heads: int, size: int, key_length: int, dtype: mx.Dtype) -> Outcome:
    """Queries over shuffled slots against MLX's own attention over the same keys in order."""
    random = np.random.default_rng(0)
    slots = random.permutation(2 * key_length)[:key_length].astype(np.int32)
    pools = [
        mx.array(random.standard_normal((2 * key_length, kv_heads, size)).astype(np.float32)).astype(dtype)
        for _ in range(2)
    ]
    scale = size**-0.5
    keys, values = (mx.contiguous(pool[mx.array(slots)].transpose(1, 0, 2)[None]) for pool in pools)
    rows = mx.array(random.standard_normal((512, heads * size)).astype(np.float32)).astype(dtype)
    mx.eval(keys, values, rows, *pools)

    @cache
    def visible(count: int) -> DeviceKeys:
        lengths, table_of_row = np.full(count, key_length, np.int32), np.zeros(count, np.int32)
        return device_keys(VisibleKeys(slots[None], table_of_row, lengths, 2 * key_length), heads, kv_heads, size)

    def ours(x: mx.array) -> mx.array:
        queries = x.reshape(x.shape[0], heads, size)
        out = paged_attention(queries, pools[0], pools[1], visible(x.shape[0]), scale=scale)
        return out.reshape(x.shape[0], heads * size)

    def native(x: mx.array) -> mx.array:
        queries = x.reshape(1, x.shape[0], heads, size).transpose(0, 2, 1, 3)
        out = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=scale)
        return out.transpose(0, 2, 1, 3).reshape(x.shape[0], heads * size)

    error = np.abs(np.array((ours(rows[:1]).astype(mx.float32)) - native(rows[:1]).astype(mx.float32))).max()
    return Outcome(
        what=f"attention {heads}/{kv_heads} heads of {size}, {key_length} keys (error against MLX)",
        dtype=str(dtype),
        moved=moved_bits(ours, rows),
        largest_error=float(error),
        ours_us={count: median_us([ours], rows[:count]) for count in TIMED_ROWS},
        native_us={count: median_us([native], rows[:count]) for count in TIMED_ROWS},
    )


def print_outcome(outcome: Outcome) -> None:
    """Verdict, error and times of one kernel."""
    verdict = "bits fixed" if not outcome.moved else f"BITS MOVED: {', '.join(outcome.moved)}"
    click.echo(f"{outcome.what} {outcome.dtype}: {verdict}; largest error {outcome.largest_error:.3g}")
    for count, ours in outcome.ours_us.items():
        native = outcome.native_us[count]
        click.echo(f"  {count:4} rows: ours {ours:.1f} us, MLX {native:.1f} us, {ours / native:.2f} times MLX's time")


@click.command()
@click.option("--shapes", default=QWEN_7B_SHAPES, show_default=True, help="KxN, separated by commas.")
@click.option("--bits", default="4", show_default=True, help="0 is dense; separated by commas.")
@click.option("--dtypes", default="float16", show_default=True, help="Separated by commas.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def main(shapes: str, bits: str, dtypes: str, as_json: bool) -> None:
    """Probe and time; exit code 1 when a bit moved."""
    failed = False
    for name in dtypes.split(","):
        outcomes = [attention_outcome(28, 4, 128, 1000, TYPES[name])]
        for shape in shapes.split(","):
            input_size, output_size = (int(size) for size in shape.split("x"))
            outcomes += [linear_outcome(input_size, output_size, int(b), TYPES[name]) for b in bits.split(",")]
        for outcome in outcomes:
            failed = failed or bool(outcome.moved)
            if as_json:
                click.echo(json.dumps(asdict(outcome)))
            else:
                print_outcome(outcome)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
