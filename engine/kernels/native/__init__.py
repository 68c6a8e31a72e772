"""Which kernel MLX itself picks, as data by version and backend: labels for `native` calls. Must not run anything.

A version that was not read is `unknown`, never a guess; releases.py says what was read, where.
"""

from __future__ import annotations

from dataclasses import replace

from engine.kernels.native.call import (
    UNKNOWN,
    AppleChip,
    Backend,
    NativeCall,
    NativeKernel,
    Operation,
    apple_chip,
)
from engine.kernels.native.metal_dense import attention_kernel, matmul_kernel
from engine.kernels.native.metal_quantized import quantized_kernel
from engine.kernels.native.releases import CPU_RELEASES, CUDA_RELEASES, METAL_RULES

__all__ = [
    "UNKNOWN",
    "AppleChip",
    "Backend",
    "NativeCall",
    "NativeKernel",
    "Operation",
    "apple_chip",
    "boundaries",
    "native_kernel",
]


def native_kernel(call: NativeCall) -> NativeKernel:
    """The kernel that MLX takes for `call`; `unknown` for a version, backend or operation that was not read."""
    if call.rows < 1:
        return UNKNOWN
    if call.backend is Backend.METAL:
        return _on_metal(call)
    if call.backend is Backend.CUDA:
        return _on_cuda(call) if call.mlx_version in CUDA_RELEASES else UNKNOWN
    return NativeKernel(f"cpu-{call.operation}", True) if call.mlx_version in CPU_RELEASES else UNKNOWN


def boundaries(call: NativeCall, most_rows: int) -> tuple[int, ...]:
    """Row counts in `2 .. most_rows` whose label differs from that of one row less; `call.rows` does not matter."""
    labels = [native_kernel(replace(call, rows=rows)).label for rows in range(1, most_rows + 1)]
    return tuple(rows for rows in range(2, most_rows + 1) if labels[rows - 1] != labels[rows - 2])


def _on_metal(call: NativeCall) -> NativeKernel:
    chip, rules = apple_chip(call.architecture), METAL_RULES.get(call.mlx_version)
    if chip is None or rules is None:
        return UNKNOWN
    match call.operation:
        case Operation.QUANTIZED_MATMUL:
            return quantized_kernel(call, chip, rules.quantized)
        case Operation.MATMUL:
            return matmul_kernel(call, chip, rules.has_wide_gemv)
        case Operation.ATTENTION:
            return attention_kernel(call, chip, rules.attention)
        case Operation.GATHER_QMM:
            return _gather_on_metal(call, chip)


def _gather_on_metal(call: NativeCall, chip: AppleChip) -> NativeKernel:
    """Rows of one token each, sorted by expert, as mlx-lm calls it; the rule is the same in every release read."""
    if call.experts < 1:
        return UNKNOWN
    if call.rows < 16 or call.rows // call.experts < 4:
        return NativeKernel("gather_qmv", True)
    if chip.may_have_tensor_units:
        return NativeKernel("gather_qmm_sorted or gather_qmm_sorted_nax", False)
    return NativeKernel("gather_qmm_sorted", True)


def _on_cuda(call: NativeCall) -> NativeKernel:
    match call.operation:
        case Operation.QUANTIZED_MATMUL:
            return NativeKernel("qmv" if call.rows < 8 else "qmm", True)
        case Operation.MATMUL:
            return NativeKernel("gemv" if call.rows == 1 else "cublaslt", True)
        case Operation.ATTENTION if call.dtype == "float32":
            return NativeKernel("sdpa_vector" if call.rows < 4 else "sdpa_unfused", True)
        case _:
            return UNKNOWN
