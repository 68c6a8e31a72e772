"""One linear site: its weights in the forms that the kernels want, made at first use. Must not know policies or
steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt

from engine.kernels.invariant.linears import LinearWeights
from engine.kernels.invariant.sites import site_weights

FloatArray = npt.NDArray[np.float32]


class LinearSite:
    """Weights of one linear-like leaf (`Linear`, `QuantizedLinear`, or an embedding used as the output projection).

    `native` is MLX's own kernel: (rows, K) -> (rows, N). The dense forms cost N * K * 4 bytes each and are kept.
    """

    def __init__(self, name: str, leaf: nn.Module, native: Callable[[mx.array], mx.array]) -> None:
        self.name = name
        self.leaf = leaf
        self.native = native
        weight = leaf.weight
        self.is_quantized = isinstance(leaf, nn.QuantizedLinear | nn.QuantizedEmbedding)
        self.bits: int = leaf.bits if self.is_quantized else 0
        self.group_size: int = leaf.group_size if self.is_quantized else 0
        self.output_size: int = weight.shape[0]
        self.input_size: int = weight.shape[1] * 32 // self.bits if self.is_quantized else weight.shape[1]

    @property
    def weight_bits_label(self) -> str:
        """`q4/32`, or the dtype of dense weights."""
        return f"q{self.bits}/{self.group_size}" if self.is_quantized else str(self.leaf.weight.dtype)

    @property
    def shape_name(self) -> str:
        """`KxN` and how the weights are stored: `576x1536 q4/32`. Sites of one name have equal speed."""
        return f"{self.input_size}x{self.output_size} {self.weight_bits_label.removeprefix('mlx.core.')}"

    @property
    def mode(self) -> str:
        """MLX's quantization mode (`affine`, `mxfp4`, ...), `dense` when not quantized."""
        return getattr(self.leaf, "mode", "affine") if self.is_quantized else "dense"

    def dequantized(self) -> mx.array:
        """The weight as one dense mx.array (N, K) in its scales' dtype."""
        leaf = self.leaf
        if not self.is_quantized:
            return leaf.weight
        return mx.dequantize(leaf.weight, leaf.scales, leaf.get("biases"), leaf.group_size, leaf.bits, mode=self.mode)

    @cached_property
    def dense_device(self) -> mx.array:
        """The weight as one dense mx.array (N, K), kept: for device kernels that cannot read it packed."""
        weight = self.dequantized()
        mx.eval(weight)
        return weight

    @cached_property
    def dense_f32(self) -> FloatArray:
        """The weight as numpy float32 (N, K), C order."""
        return np.array(self.dequantized().astype(mx.float32))

    @cached_property
    def dense_half_rounded(self) -> FloatArray:
        """The weight rounded to half and widened again: numpy float32 (N, K), C order."""
        return self.dense_f32.astype(np.float16).astype(np.float32)

    @cached_property
    def invariant_weights(self) -> LinearWeights:
        """The weight as the row-invariant kernels read it: packed weights stay packed, no dense copy."""
        return site_weights(self)

    @cached_property
    def bias_f32(self) -> FloatArray | None:
        """The additive bias (N,), None when the leaf has none."""
        bias = self.leaf.get("bias") if hasattr(self.leaf, "get") else None
        return None if bias is None else np.array(bias.astype(mx.float32))
