"""Linear kernels on CPU through numpy's BLAS, on weights made dense once. Must not know policies.

MLX's CPU wheel links the reference BLAS, about 50 times slower than numpy's; docs/kernels.md has the measurement.
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np

from engine.kernels.site import FloatArray, LinearSite


def rows_as_float32(x: mx.array) -> FloatArray:
    """View (rows, K) as numpy float32; zero-copy for float32 input, evaluates `x`."""
    return np.array(x if x.dtype == mx.float32 else x.astype(mx.float32), copy=False)


def gemv_rows(site: LinearSite, x: mx.array) -> mx.array:
    """One matrix-vector call per row: a row's bits depend on nothing but the row."""
    rows = rows_as_float32(x)
    weight = site.dense_f32
    out = np.empty((rows.shape[0], site.output_size), np.float32)
    for index in range(rows.shape[0]):
        np.dot(weight, rows[index], out=out[index])
    return _finish(site, out, x.dtype)


def gemm_f32(site: LinearSite, x: mx.array) -> mx.array:
    """One matrix-matrix call for all rows."""
    return _finish(site, _product(rows_as_float32(x), site.dense_f32), x.dtype)


def gemm_half_operands(site: LinearSite, x: mx.array) -> mx.array:
    """One matrix-matrix call on operands rounded to half, accumulated in float32 (as Metal's tile kernels do)."""
    rounded = rows_as_float32(x).astype(np.float16).astype(np.float32)
    return _finish(site, _product(rounded, site.dense_half_rounded), x.dtype)


def gemm_tiles(site: LinearSite, x: mx.array, tile_rows: int) -> mx.array:
    """Calls of exactly `tile_rows` rows, the last one padded with zero rows."""
    rows = rows_as_float32(x)
    out = np.empty((rows.shape[0], site.output_size), np.float32)
    for start in range(0, rows.shape[0], tile_rows):
        part = rows[start : start + tile_rows]
        tile = np.zeros((tile_rows, rows.shape[1]), np.float32)
        tile[: part.shape[0]] = part
        out[start : start + part.shape[0]] = _product(tile, site.dense_f32)[: part.shape[0]]
    return _finish(site, out, x.dtype)


def _product(rows: FloatArray, weight: FloatArray) -> FloatArray:
    # numpy silently takes GEMV for a single row; two rows keep "gemm" meaning GEMM at every row count.
    if rows.shape[0] == 1:
        doubled = np.concatenate([rows, rows])
        return (doubled @ weight.T)[:1]
    return rows @ weight.T


def _finish(site: LinearSite, out: FloatArray, dtype: mx.Dtype) -> mx.array:
    if site.bias_f32 is not None:
        out += site.bias_f32
    result = mx.array(out)
    return result if dtype == mx.float32 else result.astype(dtype)
