"""What MLX's selectors look at, and what they answer. Must not know which release decides how."""

from __future__ import annotations

from dataclasses import dataclass
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
    """A kernel's name, unique per order of sums; `known` is False where the choice was not read or is not decided by
    the call alone.
    """

    label: str
    known: bool


UNKNOWN = NativeKernel("unknown", False)


@dataclass(frozen=True, slots=True)
class AppleChip:
    """GPU generation (13 for M1, 14 for M2, ...) and size letter of an architecture string, `d` being an Ultra."""

    generation: int
    size: str

    @property
    def is_large(self) -> bool:
        """Max and Ultra chips, which several of MLX's rules treat apart."""
        return self.size in ("d", "s")

    @property
    def may_have_tensor_units(self) -> bool:
        """True where MLX's NAX kernels may replace the tile kernels: that also depends on the macOS version, on which
        wheel was installed, and on MLX_ENABLE_TF32.
        """
        return self.generation >= (18 if self.size == "p" else 17)


def apple_chip(architecture: str) -> AppleChip | None:
    """Read `applegpu_g15s`; None for anything else."""
    name, _, suffix = architecture.partition("_g")
    if name != "applegpu" or len(suffix) != 3 or not suffix[:2].isdigit():
        return None
    return AppleChip(int(suffix[:2]), suffix[2])
