"""Checks the invariant CUDA kernels bit by bit and times them: `python -m engine.bench.cuda.probe_cuda`.

For each shape and type: rows alone against rows in calls of 1 to 512, identical rows at every index, rows beside
NaN, and the distance to float64; then the median time of a call at several row counts beside MLX's own kernel. MLX
compiles a kernel at its first call (its quantized GEMM takes about 90 s), so every call is made before it is
timed. Exit code 1 when any bit differs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import click
import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.kernels.invariant import cuda

ROW_COUNTS = (1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 65, 128, 512)
TIMED_ROWS = (1, 4, 8, 16, 32, 512)
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
    ours_ms: dict[int, float]
    native_ms: dict[int, float]


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


def median_ms(function: RowFunction, rows: mx.array, repeats: int = 30) -> float:
    """Median time of a call, each evaluated before the next."""
    for _ in range(3):
        mx.eval(function(rows))
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        mx.eval(function(rows))
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times)


def linear_outcome(input_size: int, output_size: int, bits: int, dtype: mx.Dtype) -> Outcome:
    """A linear of random weights: ours against MLX's own and float64."""
    random = np.random.default_rng(0)
    weight = mx.array((random.standard_normal((output_size, input_size)) * input_size**-0.5).astype(np.float32))
    rows = mx.array(random.standard_normal((512, input_size)).astype(np.float32)).astype(dtype)
    ours: RowFunction
    native: RowFunction
    if bits == 0:
        typed = weight.astype(dtype)
        dense, ours, native = typed, (lambda x: cuda.linear_dense(x, typed)), (lambda x: x @ typed.T)
    else:
        packed, scales, biases = mx.quantize(weight.astype(dtype), 64, bits)
        dense = mx.dequantize(packed, scales, biases, 64, bits)

        def ours(x: mx.array) -> mx.array:
            return cuda.linear_affine(x, packed, scales, biases, bits=bits, group_size=64)

        def native(x: mx.array) -> mx.array:
            return mx.quantized_matmul(x, packed, scales, biases, transpose=True, group_size=64, bits=bits)

    exact = np.array(rows[:8].astype(mx.float32), np.float64) @ np.array(dense.astype(mx.float32), np.float64).T
    error = np.abs(np.array(ours(rows[:8]).astype(mx.float32), np.float64) - exact).max()
    return Outcome(
        what=f"linear {input_size}x{output_size} {f'q{bits}/64' if bits else 'dense'}",
        dtype=str(dtype),
        moved=moved_bits(ours, rows),
        largest_error=float(error),
        ours_ms={count: median_ms(ours, rows[:count]) for count in TIMED_ROWS},
        native_ms={count: median_ms(native, rows[:count]) for count in TIMED_ROWS},
    )


def attention_outcome(heads: int, kv_heads: int, size: int, key_length: int, dtype: mx.Dtype) -> Outcome:
    """Queries over shuffled slots against MLX's own attention over the same keys in order."""
    random = np.random.default_rng(0)
    slots = random.permutation(2 * key_length)[:key_length]
    pools = [
        mx.array(random.standard_normal((2 * key_length, kv_heads, size)).astype(np.float32)).astype(dtype)
        for _ in range(2)
    ]
    tables, scale = mx.array(slots[None].astype(np.int32)), size**-0.5
    keys, values = (mx.contiguous(pool[mx.array(slots)].transpose(1, 0, 2)[None]) for pool in pools)
    rows = mx.array(random.standard_normal((512, heads * size)).astype(np.float32)).astype(dtype)
    mx.eval(keys, values, rows, tables, *pools)

    def ours(x: mx.array) -> mx.array:
        count = x.shape[0]
        queries = x.reshape(count, heads, size)
        lengths, table_of_row = mx.full((count,), key_length, mx.int32), mx.zeros((count,), mx.int32)
        out = cuda.paged_attention(queries, pools[0], pools[1], tables, table_of_row, lengths, scale=scale)
        return out.reshape(count, heads * size)

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
        ours_ms={count: median_ms(ours, rows[:count]) for count in TIMED_ROWS},
        native_ms={count: median_ms(native, rows[:count]) for count in TIMED_ROWS},
    )


def print_outcome(outcome: Outcome) -> None:
    """Verdict, error and times of one kernel."""
    verdict = "bits fixed" if not outcome.moved else f"BITS MOVED: {', '.join(outcome.moved)}"
    click.echo(f"{outcome.what} {outcome.dtype}: {verdict}; largest error {outcome.largest_error:.3g}")
    for count, ours in outcome.ours_ms.items():
        native = outcome.native_ms[count]
        click.echo(f"  {count:4} rows: ours {ours:.4f} ms, MLX {native:.4f} ms, {ours / native:.2f} times MLX's time")


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
