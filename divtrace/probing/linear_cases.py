"""Cases of linears: MLX's own kernel, numpy's BLAS on dense weights, the invariant kernels. Must not know findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from threadpoolctl import ThreadpoolController

from divtrace.probing.cases import Case, Output, Rows
from divtrace.probing.machine import backend, blas_threads, gpu_architecture, mlx_version
from divtrace.probing.request import LinearShape
from engine.kernels import invariant
from engine.kernels.invariant.sites import site_weights
from engine.kernels.native import NativeCall, Operation
from engine.kernels.site import LinearSite

NATIVE_FUNCTIONS = {
    nn.QuantizedLinear: nn.QuantizedLinear.__call__,
    nn.Linear: nn.Linear.__call__,
    nn.QuantizedEmbedding: nn.QuantizedEmbedding.as_linear,
    nn.Embedding: nn.Embedding.as_linear,
}


def as_numpy(array: mx.array) -> Output:
    """Evaluate and view as numpy, bfloat16 as uint16."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def random_site(shape: LinearShape, seed: int) -> LinearSite:
    """A linear of normal random weights."""
    random = np.random.default_rng(seed).standard_normal((shape.output_size, shape.input_size))
    leaf = nn.Linear(shape.input_size, shape.output_size, bias=False)
    leaf.weight = mx.array(random.astype(np.float32))
    if shape.bits:
        leaf = nn.QuantizedLinear.from_linear(leaf, shape.group_size, shape.bits)
    mx.eval(leaf.parameters())
    return LinearSite("random", leaf, NATIVE_FUNCTIONS[type(leaf)].__get__(leaf))


def model_sites(model: nn.Module) -> list[LinearSite]:
    """One site for each distinct shape, storage and kind of linear in a model, in the model's order."""
    unique: dict[tuple[object, ...], LinearSite] = {}
    for path, leaf in model.named_modules():
        # Taken from MLX's classes: the leaf's own class may be one that asks a dispatcher.
        kind = next((kind for kind in NATIVE_FUNCTIONS if isinstance(leaf, kind)), None)
        if kind is None:
            continue
        site = LinearSite(path, leaf, NATIVE_FUNCTIONS[kind].__get__(leaf))
        unique.setdefault((kind, site.input_size, site.output_size, site.weight_bits_label, site.mode), site)
    return list(unique.values())


def linear_cases(site: LinearSite) -> Iterator[Case]:
    """All implementations of one site."""
    yield _native_case(site)
    yield from _blas_cases(site)
    if invariant.available():
        yield _invariant_case(site)


def matmul_cases(input_size: int, output_size: int, seed: int) -> Iterator[Case]:
    """MLX's dense matmul in each float type."""
    weight = mx.array(np.random.default_rng(seed).standard_normal((output_size, input_size)).astype(np.float32))
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        typed = weight.astype(dtype)
        mx.eval(typed)
        name = str(dtype).removeprefix("mlx.core.")

        def run(rows: Rows, typed: mx.array = typed, dtype: mx.Dtype = dtype) -> Output:
            return as_numpy(mx.array(rows).astype(dtype) @ typed.T)

        yield Case(
            operation="matmul",
            implementation="mlx",
            shape=f"{input_size}x{output_size}",
            dtype=name,
            input_size=input_size,
            run=run,
            native_call=_native_call(Operation.MATMUL, input_size, output_size, name),
        )


def _native_call(
    operation: Operation,
    input_size: int,
    output_size: int,
    dtype: str,
    bits: int = 0,
    group_size: int = 0,
    mode: str = "affine",
) -> NativeCall:
    return NativeCall(
        operation=operation,
        backend=backend(),
        mlx_version=mlx_version(),
        rows=1,
        input_size=input_size,
        output_size=output_size,
        dtype=dtype,
        architecture=gpu_architecture(),
        bits=bits,
        group_size=group_size,
        mode=mode,
    )


def _shape_text(site: LinearSite) -> str:
    return f"{site.input_size}x{site.output_size} {site.weight_bits_label.removeprefix('mlx.core.')}"


def _native_case(site: LinearSite) -> Case:
    embedding = isinstance(site.leaf, nn.Embedding | nn.QuantizedEmbedding)
    operation = Operation.QUANTIZED_MATMUL if site.is_quantized else Operation.MATMUL
    scales = site.leaf.scales if site.is_quantized else site.leaf.weight
    dtype = scales.dtype

    def run(rows: Rows) -> Output:
        return as_numpy(site.native(mx.array(rows).astype(dtype)))

    name = str(dtype).removeprefix("mlx.core.")
    return Case(
        operation="embedding as linear" if embedding else operation.value,
        implementation="mlx",
        shape=_shape_text(site),
        dtype=name,
        input_size=site.input_size,
        run=run,
        native_call=_native_call(
            operation, site.input_size, site.output_size, name, site.bits, site.group_size, site.mode
        ),
    )


def _blas_cases(site: LinearSite) -> Iterator[Case]:
    controller = ThreadpoolController()
    weight = site.dense_f32

    def limited(rows: Rows, threads: int, multiply: Callable[[Rows], Output]) -> Output:
        with controller.limit(limits=threads, user_api="blas"):
            return multiply(rows)

    def gemm(rows: Rows) -> Output:
        # numpy takes GEMV for one row, as any caller of `x @ w.T` finds out; the map must show it.
        return rows @ weight.T

    def gemv(rows: Rows) -> Output:
        return np.stack([np.dot(weight, row) for row in rows])

    for threads in sorted({1, blas_threads()}):
        for name, multiply in (("numpy gemm", gemm), ("numpy gemv", gemv)):
            yield Case(
                operation="linear",
                implementation=name,
                shape=_shape_text(site),
                dtype="float32",
                input_size=site.input_size,
                run=partial(limited, threads=threads, multiply=multiply),
                run_on_one_thread=partial(limited, threads=1, multiply=multiply) if threads > 1 else None,
                threads=threads,
            )


def _invariant_case(site: LinearSite) -> Case:
    weights, threads = site_weights(site), invariant.most_threads()
    return Case(
        operation="linear",
        implementation="invariant",
        shape=_shape_text(site),
        dtype="float32",
        input_size=site.input_size,
        run=lambda rows: invariant.linear(rows, weights),
        run_on_one_thread=(lambda rows: invariant.linear(rows, weights, threads=1)) if threads > 1 else None,
        threads=threads,
    )
