"""Which kernel MLX itself picks, as data by version and backend: labels for `native` calls. Must not run anything.

Read in the source of MLX 0.32.4 (ml-explore/mlx 846d176: quantized.cpp, matmul.cpp and
scaled_dot_product_attention.cpp of backend/metal, and their CUDA counterparts); CUDA's edges at 8 rows, 2 rows
and 4 queries were also measured on an H200. What was not read is `unknown`: another version, another
dtype's rules, a choice that depends on more than a call's sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum


class Operation(StrEnum):
    """Operations whose kernel MLX chooses by size."""

    QUANTIZED_MATMUL = "quantized_matmul"
    MATMUL = "matmul"
    ATTENTION = "attention"
    GATHER_QMM = "gather_qmm"


class Backend(StrEnum):
    """Where MLX runs."""

    CPU = "cpu"
    METAL = "metal"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True)
class NativeCall:
    """What MLX's selectors look at.

    `rows` is M for matmuls (weights transposed, one batch), query rows for attention, routed rows for gather_qmm.
    `architecture` is MLX's own string (`applegpu_g15s`), needed on Metal only. `queries_per_kv_head`, `key_length` and
    `head_size` belong to attention, `experts` to gather_qmm, `bits`, `group_size` and `mode` to quantized weights.
    """

    operation: Operation
    backend: Backend
    mlx_version: str
    rows: int
    input_size: int = 0
    output_size: int = 0
    dtype: str = "float32"
    architecture: str = ""
    bits: int = 0
    group_size: int = 0
    mode: str = "affine"
    key_length: int = 0
    head_size: int = 0
    queries_per_kv_head: int = 1
    experts: int = 0


@dataclass(frozen=True, slots=True)
class NativeKernel:
    """A kernel's name, unique per order of sums; `known` is False where the source was not read or does not decide."""

    label: str
    known: bool


UNKNOWN = NativeKernel("unknown", False)


@dataclass(frozen=True, slots=True)
class AppleChip:
    """GPU generation (13 for M1, 14 for M2, ...) and size letter of an architecture string, `d` being an Ultra."""

    generation: int
    size: str


def apple_chip(architecture: str) -> AppleChip | None:
    """Read `applegpu_g15s`; None for anything else."""
    name, _, suffix = architecture.partition("_g")
    if name != "applegpu" or len(suffix) != 3 or not suffix[:2].isdigit():
        return None
    return AppleChip(int(suffix[:2]), suffix[2])


@dataclass(frozen=True, slots=True)
class VectorLimits:
    """First row count that leaves the vector kernel, by the larger of K and N: up to 2048, up to 4096, above."""

    small: int
    medium: int
    large: int

    def of(self, input_size: int, output_size: int) -> int:
        """The limit of one shape."""
        widest = max(input_size, output_size)
        return self.small if widest <= 2048 else self.medium if widest <= 4096 else self.large


ULTRA_LIMITS = VectorLimits(32, 18, 12)
OTHER_LIMITS = VectorLimits(18, 12, 10)
LIMITS_BY_GENERATION = {
    13: VectorLimits(14, 10, 6),
    14: VectorLimits(14, 10, 6),
    15: VectorLimits(13, 15, 13),
    16: VectorLimits(13, 15, 13),
}
LIMITS_FROM_17 = VectorLimits(33, 25, 13)
WIDE_TILE_ROWS = 5
SPLIT_TARGET_GROUPS = 512
TILE = 32


def vector_limits(chip: AppleChip) -> VectorLimits:
    """Where quantized_matmul leaves its vector kernels on this chip."""
    if chip.size == "d":
        return ULTRA_LIMITS
    if chip.generation >= 17:
        return LIMITS_FROM_17
    return LIMITS_BY_GENERATION.get(chip.generation, OTHER_LIMITS)


def split_parts(rows: int, input_size: int, output_size: int, group_size: int) -> int:
    """Parts of K that qmm_splitk sums apart; 1 means plain qmm."""
    tiles = -(-output_size // TILE) * -(-rows // TILE)
    align = max(group_size, TILE)
    parts = min(max(1, SPLIT_TARGET_GROUPS // tiles), input_size // align)
    while parts > 1 and input_size % (parts * align):
        parts -= 1
    return max(parts, 1)


def _metal_quantized(call: NativeCall) -> NativeKernel:
    chip = apple_chip(call.architecture)
    if chip is None:
        return UNKNOWN
    if call.rows >= vector_limits(chip).of(call.input_size, call.output_size):
        parts = split_parts(call.rows, call.input_size, call.output_size, call.group_size)
        return NativeKernel(f"qmm_splitk-{parts}" if parts > 1 else "qmm", True)
    if call.input_size in (64, 128) and call.bits in (2, 4, 8):
        return NativeKernel("qmv_quad", True)
    if call.rows >= 2 and (chip.generation >= 15 or call.mode != "affine"):
        tiles = -(-call.rows // WIDE_TILE_ROWS)
        return NativeKernel(f"qmv_wide-{-(-call.rows // tiles)}", True)
    fast = call.output_size % 8 == 0 and call.input_size % 512 == 0
    return NativeKernel("qmv_fast" if fast else "qmv", True)


def _metal_matmul(call: NativeCall) -> NativeKernel:
    if apple_chip(call.architecture) is None:
        return UNKNOWN
    if call.rows == 1:
        return NativeKernel("gemv", True)
    if call.rows < 16:
        half = call.dtype in ("float16", "bfloat16")
        return NativeKernel("gemv_wide", True) if half else UNKNOWN
    if call.input_size < max(call.rows, call.output_size):
        return NativeKernel("gemm", True)
    return NativeKernel("gemm or gemm-splitk", False)


def _metal_attention(call: NativeCall) -> NativeKernel:
    chip = apple_chip(call.architecture)
    if chip is None:
        return UNKNOWN
    if call.rows <= 8 and call.rows * call.queries_per_kv_head <= 32:
        large = chip.size in ("d", "s") and call.key_length >= 1024
        two_pass = large or (call.queries_per_kv_head > 1 and call.key_length >= 4096)
        return NativeKernel("sdpa_vector_2pass" if two_pass else "sdpa_vector", True)
    full = call.rows > 8 and call.head_size in (64, 80, 128)
    return NativeKernel("sdpa_full" if full else "sdpa_unfused", True)


def _metal_gather(call: NativeCall) -> NativeKernel:
    if apple_chip(call.architecture) is None or call.experts < 1:
        return UNKNOWN
    is_sorted = call.rows >= 16 and call.rows // call.experts >= 4
    return NativeKernel("gather_qmm_sorted" if is_sorted else "gather_qmv", True)


def _cuda_quantized(call: NativeCall) -> NativeKernel:
    return NativeKernel("qmv" if call.rows < 8 else "qmm", True)


def _cuda_matmul(call: NativeCall) -> NativeKernel:
    return NativeKernel("gemv" if call.rows == 1 else "cublaslt", True)


def _cuda_attention(call: NativeCall) -> NativeKernel:
    if call.dtype != "float32":
        return UNKNOWN
    return NativeKernel("sdpa_vector" if call.rows < 4 else "sdpa_unfused", True)


def _cpu(call: NativeCall) -> NativeKernel:
    return NativeKernel(f"cpu-{call.operation}", True)


Selector = Callable[[NativeCall], NativeKernel]

SELECTORS_0_32_4: dict[tuple[Backend, Operation], Selector] = {
    **{(Backend.CPU, operation): _cpu for operation in Operation},
    (Backend.METAL, Operation.QUANTIZED_MATMUL): _metal_quantized,
    (Backend.METAL, Operation.MATMUL): _metal_matmul,
    (Backend.METAL, Operation.ATTENTION): _metal_attention,
    (Backend.METAL, Operation.GATHER_QMM): _metal_gather,
    (Backend.CUDA, Operation.QUANTIZED_MATMUL): _cuda_quantized,
    (Backend.CUDA, Operation.MATMUL): _cuda_matmul,
    (Backend.CUDA, Operation.ATTENTION): _cuda_attention,
}

SELECTORS_BY_VERSION = {"0.32.4": SELECTORS_0_32_4}


def native_kernel(call: NativeCall) -> NativeKernel:
    """The kernel that MLX takes for `call`; `unknown` for a version, backend or operation that was not read."""
    selector = SELECTORS_BY_VERSION.get(call.mlx_version, {}).get((call.backend, call.operation))
    return UNKNOWN if selector is None or call.rows < 1 else selector(call)


def boundaries(call: NativeCall, most_rows: int) -> tuple[int, ...]:
    """Row counts in `2 .. most_rows` whose label differs from that of one row less; `call.rows` does not matter."""
    labels = [native_kernel(replace(call, rows=rows)).label for rows in range(1, most_rows + 1)]
    return tuple(rows for rows in range(2, most_rows + 1) if labels[rows - 1] != labels[rows - 2])
