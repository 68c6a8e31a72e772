"""From a linear site of a model to weights that the invariant kernels read. Must not know policies or steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from engine.kernels.invariant.linears import (
    AFFINE_BITS,
    GROUP_SIZES,
    LinearWeights,
    affine_weights,
    dense_weights,
)

if TYPE_CHECKING:
    from engine.kernels.site import LinearSite


def site_weights(site: LinearSite) -> LinearWeights:
    """Affine weights as they are packed, dense ones as they are stored; other modes are made dense in float32 once."""
    leaf, bias = site.leaf, site.bias_f32
    if not site.is_quantized:
        return dense_weights(_numpy_view(leaf.weight), bias)
    if site.mode != "affine" or site.bits not in AFFINE_BITS or site.group_size not in GROUP_SIZES:
        return dense_weights(site.dense_f32, bias)
    packed, scales, biases = (_numpy_view(array) for array in (leaf.weight, leaf.scales, leaf.biases))
    return affine_weights(packed, scales, biases, bits=site.bits, group_size=site.group_size, bias=bias)


def _numpy_view(array: mx.array) -> npt.NDArray[Any]:
    """The array's memory as numpy, bfloat16 as uint16; the view keeps the array alive."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array, copy=False)
