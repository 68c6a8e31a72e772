"""A short fingerprint of a model's weights, so that a trace can tell whether two runs used the same ones."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import xxhash
from mlx.utils import tree_flatten


def weights_hash(model: nn.Module) -> str:
    """XXH3 (64 bit) over path, dtype, shape and bytes of every parameter, in path order, as 16 hex digits.

    Quantized weights are hashed as they are stored; a contiguous tensor is hashed in place, without a copy.
    """
    digest = xxhash.xxh3_64()
    for path, array in sorted(tree_flatten(model.parameters())):
        digest.update(f"{path}\0{array.dtype}\0{tuple(array.shape)}\0".encode())
        digest.update(_raw_bytes(array))
    return digest.hexdigest()


def _raw_bytes(array: mx.array) -> memoryview:
    # numpy has no bfloat16; the bits are the same seen as uint16.
    plain = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.array(plain, copy=False)).reshape(-1).view(np.uint8).data
