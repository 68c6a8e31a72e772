"""MLX's choice for matmul and attention on Metal, as a function of one release's rules. Must not know releases.

Source: `Matmul::eval_gpu`, `gemv_wide`, `steel_matmul_regular` and `steel_gemm_splitk` of mlx/backend/metal/matmul.cpp;
`ScaledDotProductAttention` and `sdpa_vector_2pass` of mlx/backend/metal/scaled_dot_product_attention.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.kernels.native.call import UNKNOWN, AppleChip, NativeCall, NativeKernel

WIDE_FROM_GENERATION = 15
MOST_WIDE_ROWS = 15
WIDE_PASS_ROWS = 5
LEAST_SPLIT_INPUT = 128
MOST_SPLIT_PARTS = 32
MOST_VECTOR_QUERIES = 8
MOST_VECTOR_HEADS = 32
TWO_PASS_KEYS_LARGE_CHIP = 1024
TWO_PASS_KEYS_GROUPED = 4096


@dataclass(frozen=True, slots=True)
class AttentionRules:
    """Head sizes of the vector kernel and of the full kernel (query and value heads equal).

    `settled` is False where a release has kernels beside these two whose conditions were not read: only the vector
    kernel's choice is known then.
    """

    vector_head_sizes: frozenset[int]
    full_head_sizes: frozenset[int]
    settled: bool


def matmul_kernel(call: NativeCall, chip: AppleChip, has_wide: bool) -> NativeKernel:
    """The kernel of `x (M, K) @ w.T` with w (N, K), both contiguous, without batch dimensions or bias."""
    if call.rows == 1 or call.output_size == 1:
        return NativeKernel("gemv", True)
    half = call.dtype in ("float16", "bfloat16")
    fits = call.rows <= MOST_WIDE_ROWS and call.input_size % 4 == 0
    if has_wide and chip.generation >= WIDE_FROM_GENERATION and half and fits:
        return NativeKernel(_wide_label(call), True)
    if chip.may_have_tensor_units:
        return NativeKernel("gemm or gemm_nax", False)
    parts = gemm_parts(call, chip)
    return NativeKernel(f"gemm_splitk-{parts}" if parts > 1 else "gemm", True)


def gemm_parts(call: NativeCall, chip: AppleChip) -> int:
    """Parts of K that the split-K GEMM sums apart; 1 means plain GEMM."""
    rows, inputs, outputs = call.rows, call.input_size, call.output_size
    tiles = -(-rows // 16) * -(-outputs // 16)
    few = tiles <= (2048 if chip.is_large else 1024)
    if not few or inputs < LEAST_SPLIT_INPUT or inputs < max(rows, outputs):
        return 1
    wanted = (inputs // 16) // (-(-rows // 32) * -(-outputs // 32))
    power = 1 << max(wanted - 1, 0).bit_length() if wanted > 0 else 0
    return min(max(2, power), MOST_SPLIT_PARTS)


def _wide_label(call: NativeCall) -> str:
    passes = -(-call.rows // WIDE_PASS_ROWS)
    lanes = 32 if call.output_size <= 64 or call.rows <= WIDE_PASS_ROWS else 16
    return f"gemv_wide-{-(-call.rows // passes)}x{lanes}"


def attention_kernel(call: NativeCall, chip: AppleChip, rules: AttentionRules) -> NativeKernel:
    """The kernel of a call with causal mask or none, K/V of one head size, and at least as many keys as queries."""
    few_heads = call.rows * call.queries_per_kv_head <= MOST_VECTOR_HEADS
    if call.rows <= MOST_VECTOR_QUERIES and few_heads and call.head_size in rules.vector_head_sizes:
        blocks = two_pass_blocks(call, chip)
        return NativeKernel(f"sdpa_vector_2pass-{blocks}" if blocks else "sdpa_vector", True)
    if call.rows <= MOST_VECTOR_QUERIES or call.head_size not in rules.full_head_sizes:
        return NativeKernel("sdpa_unfused", True) if rules.settled else UNKNOWN
    if chip.may_have_tensor_units:
        return NativeKernel("sdpa_full or sdpa_full_nax", False)
    return NativeKernel("sdpa_full", rules.settled)


def two_pass_blocks(call: NativeCall, chip: AppleChip) -> int:
    """Blocks of keys that the vector kernel sums apart, 0 for one pass; MLX_SDPA_BLOCKS overrides it from 0.32.0 on."""
    keys, heads = call.key_length, call.rows * call.queries_per_kv_head
    on_large = chip.is_large and keys >= TWO_PASS_KEYS_LARGE_CHIP
    if not on_large and not (call.queries_per_kv_head > 1 and keys >= TWO_PASS_KEYS_GROUPED):
        return 0
    if chip.size == "s":
        return 64 if keys <= 1024 or heads <= 4 else _by_keys(keys)
    if chip.size == "d":
        if heads <= 2 and keys > 8192:
            return 256
        return 128 if heads < 6 or keys < 16384 else 512 if keys < 65536 else 1024
    return 64 if heads >= 4 else 32


def _by_keys(keys: int) -> int:
    steps = ((8192, 128), (32768, 256), (65536, 512))
    return next((blocks for most, blocks in steps if keys <= most), 1024)
