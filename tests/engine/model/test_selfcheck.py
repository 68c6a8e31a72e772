"""The load-time check passes what runs and names what does not."""

from __future__ import annotations

import mlx.core as mx
import pytest

from engine.engine import Engine
from engine.errors import UnsupportedModelError
from engine.kernels.policy import KernelPolicy
from engine.model.packed import PackedModel
from engine.model.selfcheck import check_packed_against_plain
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_sound_model_passes_bit_for_bit(dtype: str) -> None:
    loaded = tiny_model("qwen3", dtype=dtype)
    with PackedModel(loaded.model, KernelPolicy()) as packed:
        assert check_packed_against_plain(packed, dtype, loaded.vocabulary_size).is_bitwise


def test_a_layer_that_derives_positions_from_the_shape_of_its_keys_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = tiny_model("llama")
    attention = loaded.model.model.layers[0].self_attn
    rope = attention.rope

    def shape_based_rope(x: mx.array, offset: object = 0) -> mx.array:
        return rope(x, offset=0 if isinstance(offset, mx.array) else offset)

    monkeypatch.setitem(attention, "rope", shape_based_rope)
    with pytest.raises(UnsupportedModelError, match="llama: a packed step differs"):
        Engine(loaded, EngineSettings(policy="native"))
    # The refusal leaves the model as it was.
    with PackedModel(loaded.model, KernelPolicy()):
        pass
