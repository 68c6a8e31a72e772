"""Cases that are not linears: norms, softmax, rope, attention, expert matmuls. Must not know findings."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np

from divtrace.probing.cases import Case, Output, Rows
from divtrace.probing.linear_cases import as_numpy
from divtrace.probing.machine import backend, gpu_architecture, mlx_version
from engine.kernels import invariant
from engine.kernels.native import NativeCall, Operation

SHORTEST_KEYS = 256
EXPERTS = 4


def elementwise_cases(width: int, head_size: int, seed: int) -> Iterator[Case]:
    """Norms and softmax over `width` elements, rope over one head of `head_size` with an offset per row."""
    random = np.random.default_rng(seed)
    gain = mx.array(random.standard_normal(width).astype(np.float32))
    functions = {
        "rms_norm": lambda x: mx.fast.rms_norm(x, gain, 1e-5),
        "layer_norm": lambda x: mx.fast.layer_norm(x, gain, gain, 1e-5),
        "softmax": lambda x: mx.softmax(x, axis=-1),
    }
    for name, function in functions.items():

        def run(rows: Rows, function: object = function) -> Output:
            return as_numpy(function(mx.array(rows)))  # type: ignore[operator]

        yield Case(operation=name, implementation="mlx", shape=str(width), dtype="float32", input_size=width, run=run)

    def rope(rows: Rows) -> Output:
        x = mx.array(rows).reshape(len(rows), 1, 1, head_size)
        # The position is read off the row itself, so that equal rows have equal inputs.
        offsets = mx.array((np.nan_to_num(np.abs(rows[:, 0]), posinf=0.0) * 100).astype(np.int32) % 1000)
        rotated = mx.fast.rope(x, head_size, traditional=False, base=10000.0, scale=1.0, offset=offsets)
        return as_numpy(rotated.reshape(len(rows), head_size))

    yield Case(
        operation="rope",
        implementation="mlx",
        shape=str(head_size),
        dtype="float32",
        input_size=head_size,
        run=rope,
    )


def attention_cases(heads: int, kv_heads: int, head_size: int, most_rows: int, seed: int) -> Iterator[Case]:
    """Attention of M query rows over at least 256 keys: MLX without and with a causal mask, and our own kernel."""
    random, key_length = np.random.default_rng(seed), max(SHORTEST_KEYS, most_rows)
    keys, values = random.standard_normal((2, key_length, kv_heads, head_size)).astype(np.float32)
    mx_keys, mx_values = (mx.array(np.ascontiguousarray(a.transpose(1, 0, 2)[None])) for a in (keys, values))
    mx.eval(mx_keys, mx_values)
    scale = head_size**-0.5
    shape = f"{heads}/{kv_heads} heads of {head_size}, {key_length} keys"

    def attend(rows: Rows, end: int, mask: str | None) -> Output:
        queries = mx.array(rows).reshape(1, len(rows), heads, head_size).transpose(0, 2, 1, 3)
        out = mx.fast.scaled_dot_product_attention(
            queries, mx_keys[:, :, :end], mx_values[:, :, :end], scale=scale, mask=mask
        )
        return as_numpy(out.transpose(0, 2, 1, 3)).reshape(len(rows), heads * head_size)

    def causal_alone(rows: Rows, index: int) -> Output:
        return attend(rows[index : index + 1], key_length - len(rows) + index + 1, None)[0]

    native_call = NativeCall(
        operation=Operation.ATTENTION,
        backend=backend(),
        mlx_version=mlx_version(),
        rows=1,
        architecture=gpu_architecture(),
        key_length=key_length,
        head_size=head_size,
        queries_per_kv_head=heads // kv_heads,
    )
    width = heads * head_size
    yield Case(
        operation="attention",
        implementation="mlx",
        shape=f"{shape}, no mask",
        dtype="float32",
        input_size=width,
        run=lambda rows: attend(rows, key_length, None),
        native_call=native_call,
    )
    yield Case(
        operation="attention",
        implementation="mlx",
        shape=f"{shape}, causal",
        dtype="float32",
        input_size=width,
        run=lambda rows: attend(rows, key_length, "causal"),
        alone=causal_alone,
        rows_are_alike=False,
        native_call=native_call,
    )
    if invariant.available() and head_size % 16 == 0:
        yield _invariant_attention(keys, values, heads, shape)


def _invariant_attention(keys: Rows, values: Rows, heads: int, shape: str) -> Case:
    key_length, _, head_size = keys.shape

    def attend(rows: Rows, threads: int | None = None) -> Output:
        queries, count = rows.reshape(len(rows), heads, head_size), len(rows)
        visible = invariant.visible_keys(
            [np.arange(key_length)], np.zeros(count), np.full(count, key_length), pool_slots=key_length
        )
        out = invariant.paged_attention(queries, keys, values, visible, scale=head_size**-0.5, threads=threads)
        return out.reshape(count, heads * head_size)

    return Case(
        operation="attention",
        implementation="invariant",
        shape=f"{shape}, no mask",
        dtype="float32",
        input_size=heads * head_size,
        run=attend,
        run_on_one_thread=lambda rows: attend(rows, 1),
        threads=invariant.most_threads(),
    )


def expert_cases(input_size: int, output_size: int, seed: int) -> Iterator[Case]:
    """MLX's gather_qmm over four experts of 4-bit weights; a row's expert is read off the row."""
    weight = np.random.default_rng(seed).standard_normal((EXPERTS, output_size, input_size)).astype(np.float32)
    packed, scales, biases = mx.quantize(mx.array(weight), 64 if input_size % 64 == 0 else 32, 4)
    mx.eval(packed, scales, biases)
    group_size = input_size // scales.shape[-1]

    def run(rows: Rows) -> Output:
        experts = (np.nan_to_num(np.abs(rows[:, 0]), posinf=0.0) * 1000).astype(np.uint32) % EXPERTS
        out = mx.gather_qmm(
            mx.array(rows)[:, None, :],
            packed,
            scales,
            biases,
            rhs_indices=mx.array(experts),
            transpose=True,
            group_size=group_size,
            bits=4,
        )
        return as_numpy(out.reshape(len(rows), output_size))

    yield Case(
        operation="gather_qmm",
        implementation="mlx",
        shape=f"{input_size}x{output_size} q4/{group_size}, {EXPERTS} experts",
        dtype="float32",
        input_size=input_size,
        run=run,
        native_call=NativeCall(
            operation=Operation.GATHER_QMM,
            backend=backend(),
            mlx_version=mlx_version(),
            rows=1,
            input_size=input_size,
            output_size=output_size,
            architecture=gpu_architecture(),
            bits=4,
            group_size=group_size,
            experts=EXPERTS,
        ),
    )
