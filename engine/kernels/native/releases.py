"""The rules of each MLX release, as data. Must not know calls.

Metal, 0.31.0 to 0.32.4: read in the machine code of `libmlx.dylib` in each release's own wheel (`mlx-metal`, arm64,
macOS 14): `QuantizedMatmul::eval_gpu`, `dispatch_qmv`, `qmv`, `qmm_splitk`, `GatherQMM::eval_gpu`, `Matmul::eval_gpu`,
`gemv_wide`, `steel_matmul_regular`'s caller, `steel_gemm_splitk_axpby`, `ScaledDotProductAttention::use_fallback` and
`::eval_gpu`. Names and meanings are those of the source at ml-explore/mlx 846d176 (mlx/backend/metal/quantized.cpp,
matmul.cpp, scaled_dot_product_attention.cpp); the two-pass rule at tag v0.31.1 is quoted in ml-explore/mlx#4022.

CPU: every release's Linux wheel (`mlx-cpu`) was run: float32, float16 and bfloat16 matmul, quantized_matmul of 2, 3,
4, 5, 6 and 8 bits, attention, and gather_qmm gave each row its single-row bits at every row count tried. It says
nothing of Apple's own BLAS on a Mac's processor.

CUDA: the edges of 0.32.4 were measured on an H200 and its kernel names read in Nsight Compute. In the wheels of 0.32.0
to 0.32.3 (`mlx-cuda-13`, x86-64) the functions that decide (`supports_qmv`, `supports_fp_qmv`, `supports_qmm_*`,
`can_use_gemv`, `supports_sdpa_vector`, `supports_sdpa_cudnn`) are those of 0.32.4, compare for compare. 0.31.1 has
other kernels for quantized weights, and 0.31.0 and 0.31.2 have no such wheel: unknown.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine.kernels.native.metal_dense import AttentionRules
from engine.kernels.native.metal_quantized import LimitsOfChips, QuantizedRules, VectorLimits

EVERY_GENERATION = range(100)
ULTRA = LimitsOfChips(EVERY_GENERATION, "d", VectorLimits(32, 18, 12))
M1_AND_M2 = LimitsOfChips(range(13, 15), "", VectorLimits(14, 10, 6))
M1_MAX_FROM_0_32_4 = LimitsOfChips(range(13, 14), "s", VectorLimits(14, 10, 7))
M3_AND_M4_FROM_0_32_1 = LimitsOfChips(range(15, 17), "", VectorLimits(13, 15, 13))
M5_FROM_0_32_1 = LimitsOfChips(range(17, 100), "", VectorLimits(33, 25, 13))
OTHERS = LimitsOfChips(EVERY_GENERATION, "", VectorLimits(18, 12, 10))


@dataclass(frozen=True, slots=True)
class MetalRules:
    """What decides on Metal in one release. `has_wide_gemv`: half types share a vector kernel over several rows."""

    quantized: QuantizedRules
    has_wide_gemv: bool
    attention: AttentionRules


_QUANTIZED_0_31_0 = QuantizedRules(
    limits=(ULTRA, M1_AND_M2, OTHERS), has_wide=False, has_split=False, split_by_tile=False, fast_by_bits=False
)
_QUANTIZED_0_31_2 = replace(_QUANTIZED_0_31_0, has_split=True)
_QUANTIZED_0_32_0 = replace(_QUANTIZED_0_31_2, has_wide=True)
_QUANTIZED_0_32_1 = replace(
    _QUANTIZED_0_32_0,
    limits=(ULTRA, M1_AND_M2, M3_AND_M4_FROM_0_32_1, M5_FROM_0_32_1, OTHERS),
    split_by_tile=True,
    fast_by_bits=True,
)
_QUANTIZED_0_32_4 = replace(_QUANTIZED_0_32_1, limits=(M1_MAX_FROM_0_32_4, *_QUANTIZED_0_32_1.limits))

_ATTENTION_0_31_0 = AttentionRules(frozenset({64, 96, 128, 256}), frozenset({64, 80, 128}), settled=True)
_ATTENTION_0_32_1 = replace(_ATTENTION_0_31_0, full_head_sizes=frozenset({64, 72, 80, 96, 128}))
_ATTENTION_0_32_2 = replace(_ATTENTION_0_32_1, vector_head_sizes=frozenset({64, 96, 128, 192, 256}), settled=False)

METAL_RULES: dict[str, MetalRules] = {
    "0.31.0": MetalRules(_QUANTIZED_0_31_0, False, _ATTENTION_0_31_0),
    "0.31.1": MetalRules(_QUANTIZED_0_31_0, False, _ATTENTION_0_31_0),
    "0.31.2": MetalRules(_QUANTIZED_0_31_2, False, _ATTENTION_0_31_0),
    "0.32.0": MetalRules(_QUANTIZED_0_32_0, False, _ATTENTION_0_31_0),
    "0.32.1": MetalRules(_QUANTIZED_0_32_1, True, _ATTENTION_0_32_1),
    "0.32.2": MetalRules(_QUANTIZED_0_32_1, True, _ATTENTION_0_32_2),
    "0.32.3": MetalRules(_QUANTIZED_0_32_1, True, _ATTENTION_0_32_2),
    "0.32.4": MetalRules(_QUANTIZED_0_32_4, True, _ATTENTION_0_32_2),
}
CPU_RELEASES = frozenset(METAL_RULES)
CUDA_RELEASES = frozenset({"0.32.0", "0.32.1", "0.32.2", "0.32.3", "0.32.4"})
