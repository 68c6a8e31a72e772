"""Path name -> linear kernel, on the device at hand. The one place that knows every linear path."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx

from engine.errors import SettingsError
from engine.kernels import blas, invariant
from engine.kernels.invariant import cuda
from engine.kernels.policy import LinearPath
from engine.kernels.site import LinearSite

LinearKernel = Callable[[LinearSite, mx.array], mx.array]


def native(site: LinearSite, x: mx.array) -> mx.array:
    """Whatever MLX picks for this many rows."""
    return site.native(x)


def native_rows(site: LinearSite, x: mx.array) -> mx.array:
    """MLX's single-row kernel, once per row."""
    if x.shape[0] == 1:
        return site.native(x)
    return mx.concatenate([site.native(x[i : i + 1]) for i in range(x.shape[0])], axis=0)


def device_gemm(site: LinearSite, x: mx.array, dtype: mx.Dtype) -> mx.array:
    """One dense matmul on the device, operands in `dtype`, result in the activations' dtype."""
    weight = site.dense_device.astype(dtype)
    out = (x.astype(dtype) @ weight.T).astype(x.dtype)
    bias = site.leaf.get("bias")
    return out if bias is None else out + bias


def native_tiles(site: LinearSite, x: mx.array, tile_rows: int) -> mx.array:
    """MLX calls of exactly `tile_rows` rows, the last one padded with zero rows."""
    outputs = []
    for start in range(0, x.shape[0], tile_rows):
        part = x[start : start + tile_rows]
        padded = mx.pad(part, [(0, tile_rows - part.shape[0]), (0, 0)])
        outputs.append(site.native(padded)[: part.shape[0]])
    return mx.concatenate(outputs, axis=0)


def invariant_rows(site: LinearSite, x: mx.array) -> mx.array:
    """Our kernel: a row's bits depend on nothing but its own inputs, at any row count and thread count."""
    out = mx.array(invariant.linear(blas.rows_as_float32(x), site.invariant_weights))
    return out if x.dtype == mx.float32 else out.astype(x.dtype)


def invariant_rows_on_cuda(site: LinearSite, x: mx.array) -> mx.array:
    """The same contract through a CUDA kernel of ours; weights that it cannot read packed are made dense once."""
    leaf = site.leaf
    bias = leaf.get("bias")
    if site.mode == "affine" and site.bits in cuda.AFFINE_BITS:
        return cuda.linear_affine(
            x, leaf.weight, leaf.scales, leaf.biases, bits=site.bits, group_size=site.group_size, bias=bias
        )
    return cuda.linear_dense(x, site.dense_device.astype(x.dtype), bias)


CPU_KERNELS: dict[str, LinearKernel] = {
    LinearPath.NATIVE: native,
    LinearPath.GEMV: blas.gemv_rows,
    LinearPath.GEMM_F32: blas.gemm_f32,
    LinearPath.GEMM_F16: blas.gemm_half_operands,
    LinearPath.INVARIANT: invariant_rows,
}
GPU_KERNELS: dict[str, LinearKernel] = {
    LinearPath.NATIVE: native,
    LinearPath.GEMV: native_rows,
    LinearPath.GEMM_F32: lambda site, x: device_gemm(site, x, mx.float32),
    LinearPath.GEMM_F16: lambda site, x: device_gemm(site, x, mx.float16),
    LinearPath.INVARIANT: invariant_rows_on_cuda,
}


def on_cpu() -> bool:
    """True when MLX computes on the CPU."""
    return bool(mx.default_device() == mx.Device(mx.cpu))


def linear_kernel(path: str) -> LinearKernel:
    """The kernel for a path name.

    Raises:
        SettingsError: the path is unknown, or this machine cannot run it.
    """
    kernels = CPU_KERNELS if on_cpu() else GPU_KERNELS
    if path in kernels:
        return kernels[path]
    if path.startswith("tile-"):
        tile_rows = int(path.removeprefix("tile-"))
        if on_cpu():
            return lambda site, x: blas.gemm_tiles(site, x, tile_rows)
        return lambda site, x: native_tiles(site, x, tile_rows)
    raise SettingsError(f"kernel path {path!r} cannot run here; this machine has {', '.join(kernels)}, tile-T.")
