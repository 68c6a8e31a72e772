"""Kernels that only faults use, known to the engine by path name while `fault_kernels` is open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.kernels import attention, blas, linear
from engine.kernels.attention import AttentionCall
from engine.kernels.site import LinearSite

FloatArray = npt.NDArray[np.float32]

COARSE = "gemm-coarse-operands"
FINE = "gemm-bf16-operands"
UNORDERED = "gemm-unordered"
OVERFLOWING = "gemm-f16-overflow"
INFINITE = "gemm-f16-too-large"
SPLIT_KEYS = 8
SPLIT = f"split-{SPLIT_KEYS}-keys"


def rounded(values: FloatArray, mantissa_bits: int) -> FloatArray:
    """Float32 values with only so many explicit mantissa bits, rounded half up in magnitude."""
    dropped = 23 - mantissa_bits
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    kept = (bits + np.uint32(1 << (dropped - 1))) & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)
    return kept.view(np.float32)


def rounding_gemm(mantissa_bits: int) -> linear.LinearKernel:
    """A GEMM whose operands are rounded, as matrix units of low precision do."""

    def run(site: LinearSite, x: mx.array) -> mx.array:
        rows = rounded(blas.rows_as_float32(x), mantissa_bits)
        doubled = np.concatenate([rows, rows])
        return _finish(site, (doubled @ rounded(site.dense_f32, mantissa_bits).T)[: rows.shape[0]])

    return run


def unordered_gemm(site: LinearSite, x: mx.array) -> mx.array:
    """Partial sums over K added in another order at every call, as atomic additions are."""
    rows, weight = blas.rows_as_float32(x), site.dense_f32
    order = np.random.default_rng().permutation(rows.shape[1])
    total = np.zeros((rows.shape[0], weight.shape[0]), np.float32)
    for part in np.array_split(order, 8):
        total += rows[:, part] @ weight[:, part].T
    return _finish(site, total)


def infinite_gemm(site: LinearSite, x: mx.array) -> mx.array:
    """Half-precision sums whose last output is too large for the format."""
    out = np.array(blas.gemm_f32(site, x))
    out[:, -1] = np.inf
    return mx.array(out)


def overflowing_gemm(site: LinearSite, x: mx.array) -> mx.array:
    """Half-precision sums that overflow in the last output, where inf - inf is NaN."""
    out = np.array(blas.gemm_f32(site, x))
    out[:, -1] = np.nan
    return mx.array(out)


def split_attention(call: AttentionCall) -> mx.array:
    """The key loop cut every `SPLIT_KEYS` keys; partial outputs are kept at 4 mantissa bits, then merged."""
    queries, keys, values = (np.array(a.astype(mx.float32))[0] for a in (call.queries, call.keys, call.values))
    repeats = queries.shape[0] // keys.shape[0]
    keys, values = np.repeat(keys, repeats, axis=0), np.repeat(values, repeats, axis=0)
    rows, total = queries.shape[1], keys.shape[1]
    out = np.empty(queries.shape, np.float32)
    for row in range(rows):
        end = total - rows + row + 1
        start = max(0, end - call.window) if call.window else 0
        out[:, row] = _merged(queries[:, row] * np.float32(call.scale), keys[:, start:end], values[:, start:end])
    return mx.array(out[None]).astype(call.queries.dtype)


def _merged(query: FloatArray, keys: FloatArray, values: FloatArray) -> FloatArray:
    """(heads, D), (heads, keys, D), (heads, keys, D) -> (heads, D)."""
    top = np.full(query.shape[0], -np.inf, np.float32)
    mass = np.zeros(query.shape[0], np.float32)
    mixed = np.zeros(query.shape, np.float32)
    for start in range(0, keys.shape[1], SPLIT_KEYS):
        scores = np.einsum("hd,hkd->hk", query, keys[:, start : start + SPLIT_KEYS])
        here = np.maximum(top, scores.max(axis=1))
        weights, kept = np.exp(scores - here[:, None]), np.exp(top - here)
        part = rounded(np.einsum("hk,hkd->hd", weights, values[:, start : start + SPLIT_KEYS]), 4)
        mixed = mixed * kept[:, None] + part
        mass = mass * kept + weights.sum(axis=1)
        top = here
    return np.asarray(mixed / mass[:, None], np.float32)


def _finish(site: LinearSite, out: FloatArray) -> mx.array:
    if site.bias_f32 is not None:
        out = out + site.bias_f32
    return mx.array(np.ascontiguousarray(out, np.float32))


@contextmanager
def fault_kernels() -> Iterator[None]:
    """Register the kernels of this module for as long as the context is open."""
    linears = {
        COARSE: rounding_gemm(4),
        FINE: rounding_gemm(8),
        UNORDERED: unordered_gemm,
        OVERFLOWING: overflowing_gemm,
        INFINITE: infinite_gemm,
    }
    with patch.dict(linear.CPU_KERNELS, linears), patch.dict(attention.ATTENTION_KERNELS, {SPLIT: split_attention}):
        yield
