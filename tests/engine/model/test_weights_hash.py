"""Equal weights hash alike, and no single bit can change unseen."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import pytest
from mlx.utils import tree_flatten, tree_unflatten

from engine.model.weights_hash import weights_hash
from fixtures.tiny_models import tiny_model


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_hash_is_decided_by_the_weights(dtype: str, quantized: bool) -> None:
    first = tiny_model(dtype=dtype, quantized=quantized, seed=1)
    second = tiny_model(dtype=dtype, quantized=quantized, seed=1)
    other = tiny_model(dtype=dtype, quantized=quantized, seed=2)
    assert weights_hash(first.model) == weights_hash(second.model) == first.weights_hash
    assert other.weights_hash != first.weights_hash


def test_one_flipped_bit_in_any_parameter_is_seen() -> None:
    model = tiny_model("qwen2", quantized=True, layers=1).model
    hashes = {weights_hash(model)}
    parameters = tree_flatten(model.parameters())
    for path, array in parameters:
        bits = mx.contiguous(array).view(mx.uint32).reshape(-1)
        flipped = mx.concatenate([bits[:-1], bits[-1:] ^ 1]).reshape(array.shape).view(array.dtype)
        model.update(tree_unflatten([(path, flipped)]))
        hashes.add(weights_hash(model))
        model.update(tree_unflatten([(path, array)]))
    assert len(hashes) == len(parameters) + 1


def test_dtype_shape_and_place_count_beside_the_bytes() -> None:
    class Holder(nn.Module):
        def __init__(self, name: str, array: mx.array) -> None:
            super().__init__()
            self[name] = array

    zeros = mx.zeros((4, 2), mx.float32)
    variants = [
        Holder("a", zeros),
        Holder("b", zeros),
        Holder("a", zeros.reshape(2, 4)),
        Holder("a", zeros.astype(mx.int32)),
        Holder("a", zeros.astype(mx.bfloat16)),
        Holder("a", mx.zeros((0, 4))),
        Holder("a", mx.array(0.0)),
    ]
    assert len({weights_hash(module) for module in variants}) == len(variants)


def test_a_transposed_view_hashes_as_its_own_layout() -> None:
    module, copy = nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False)
    base = mx.arange(15, dtype=mx.float32).reshape(3, 5)
    module.weight, copy.weight = base.T, mx.array(base.T.tolist())
    assert weights_hash(module) == weights_hash(copy)
