from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from engine.kernels.invariant import linear, linear_dense
from engine.kernels.invariant.sites import site_weights
from engine.kernels.site import LinearSite


def site_of(leaf: nn.Module) -> LinearSite:
    mx.eval(leaf.parameters())
    return LinearSite("leaf", leaf, leaf.__call__)


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("quantized", [False, True])
def test_a_leaf_multiplies_as_its_dense_weights_do(dtype: mx.Dtype, quantized: bool) -> None:
    leaf = nn.Linear(64, 9)
    if quantized:
        leaf = nn.QuantizedLinear.from_linear(leaf, group_size=32, bits=4)
    leaf.set_dtype(dtype)
    site, x = site_of(leaf), np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    if quantized:
        parts = [part.astype(mx.float32) for part in (leaf.scales, leaf.biases)]
        weight = np.array(mx.dequantize(leaf.weight, *parts, 32, 4))
    else:
        weight = np.array(leaf.weight.astype(mx.float32))
    expected = linear_dense(x, weight, site.bias_f32)
    assert linear(x, site_weights(site)).tobytes() == expected.tobytes()


def test_packed_weights_are_read_in_place() -> None:
    leaf = nn.QuantizedLinear(64, 9, bias=False, group_size=32, bits=4)
    weights = site_weights(site_of(leaf))
    assert sum(array.nbytes for array in weights.arrays) == leaf.weight.nbytes + leaf.scales.nbytes + leaf.biases.nbytes


def test_a_mode_that_is_not_affine_is_made_dense() -> None:
    leaf = nn.QuantizedLinear(64, 9, bias=False, group_size=32, bits=4, mode="mxfp4")
    site = site_of(leaf)
    assert site_weights(site).layout.bits == 0
