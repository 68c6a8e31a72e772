"""A packed forward is the model's own forward: bit for bit under `native`, and refused where it cannot be."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models import base
from mlx_lm.models.cache import make_prompt_cache

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import SettingsError, UnsupportedModelError
from engine.kernels.policy import KernelPolicy, LinearRule, forced_gemv
from engine.kv.contiguous import ContiguousStore
from engine.model.packed import PackedModel
from fixtures.tiny_models import tiny_model

TOKENS = tuple(range(3, 40))


def one_segment(tokens: tuple[int, ...], first_position: int = 0, step: int = 0) -> Batch:
    segment = Segment("r", SegmentKind.PREFILL, first_position, tokens, 0, len(tokens))
    return Batch(step, (segment,))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_request_alone_equals_the_plain_forward_bit_for_bit(architecture: str, quantized: bool, dtype: str) -> None:
    loaded = tiny_model(architecture, quantized=quantized, dtype=dtype)
    plain = loaded.model(mx.array([TOKENS]), cache=make_prompt_cache(loaded.model))[0]
    expected = np.array(plain.astype(mx.float32))
    store = ContiguousStore()
    store.admit("r", TOKENS)
    store.grow("r", len(TOKENS))
    with PackedModel(loaded.model, KernelPolicy()) as packed:
        logits = packed.forward(one_segment(TOKENS), store).logits
    assert logits.tobytes() == expected.tobytes()


def test_chunks_and_neighbours_do_not_change_a_row_under_forced_gemv() -> None:
    loaded = tiny_model("llama", quantized=True)
    with PackedModel(loaded.model, forced_gemv()) as packed:
        alone = ContiguousStore()
        alone.admit("r", TOKENS)
        alone.grow("r", len(TOKENS))
        whole = packed.forward(one_segment(TOKENS), alone).logits
        mixed = ContiguousStore()
        for name in ("r", "other"):
            mixed.admit(name, TOKENS)
            mixed.grow(name, len(TOKENS))
        first = Batch(0, (Segment("r", SegmentKind.PREFILL, 0, TOKENS[:7], 0, 7),))
        start = packed.forward(first, mixed).logits
        mixed.commit_step(first)
        second = Batch(
            1,
            (
                Segment("other", SegmentKind.PREFILL, 0, TOKENS[:11], 0, 1),
                Segment("r", SegmentKind.PREFILL, 7, TOKENS[7:], 11, len(TOKENS) - 7),
            ),
        )
        rest = packed.forward(second, mixed).logits[1:]
    assert np.concatenate([start, rest]).tobytes() == whole.tobytes()


def test_the_head_runs_on_wanted_rows_alone() -> None:
    loaded = tiny_model("llama")
    store = ContiguousStore()
    store.admit("r", TOKENS)
    store.grow("r", len(TOKENS))
    with PackedModel(loaded.model, KernelPolicy()) as packed:
        batch = Batch(0, (Segment("r", SegmentKind.PREFILL, 0, TOKENS, 0, 2),))
        result = packed.forward(batch, store)
    head = [choice for choice in result.plan if choice.operation == "head"]
    assert [choice.rows for choice in head] == [2]
    assert {choice.rows for choice in result.plan if choice.operation == "linear"} == {len(TOKENS)}
    assert result.logits.shape == (2, loaded.vocabulary_size)


def test_every_site_is_recorded_once_in_execution_order() -> None:
    loaded = tiny_model("qwen3", layers=3)
    store = ContiguousStore()
    store.admit("r", TOKENS)
    store.grow("r", len(TOKENS))
    with PackedModel(loaded.model, KernelPolicy()) as packed:
        plan = packed.forward(one_segment(TOKENS), store).plan
    names = [choice.site for choice in plan]
    assert len(names) == len(set(names)) == 3 * 8 + 1
    assert names[:4] == [f"model.layers.0.self_attn.{part}" for part in ("q_proj", "k_proj", "v_proj")] + [
        "model.layers.0.self_attn"
    ]
    assert names[-1] == "lm_head"


def test_closing_gives_the_model_back() -> None:
    loaded = tiny_model("llama")
    classes = [type(module) for module in loaded.model.modules()]
    packed = PackedModel(loaded.model, KernelPolicy())
    assert [type(module) for module in loaded.model.modules()] != classes
    packed.close()
    assert [type(module) for module in loaded.model.modules()] == classes
    from mlx_lm.models import llama

    assert llama.scaled_dot_product_attention is base.scaled_dot_product_attention


def test_plain_mlx_lm_keeps_working_while_a_packed_model_is_open() -> None:
    loaded, other = tiny_model("llama", seed=1), tiny_model("llama", seed=2)
    expected = other.model(mx.array([TOKENS]), cache=make_prompt_cache(other.model))
    with PackedModel(loaded.model, KernelPolicy()):
        during = other.model(mx.array([TOKENS]), cache=make_prompt_cache(other.model))
    assert np.array(during).tobytes() == np.array(expected).tobytes()


def test_a_model_that_keeps_other_state_than_kv_rows_is_refused_by_name() -> None:
    from mlx_lm.models import mamba

    arguments = mamba.ModelArgs(
        model_type="mamba", vocab_size=64, hidden_size=32, intermediate_size=64, state_size=8,
        num_hidden_layers=2, conv_kernel=4, use_bias=False, use_conv_bias=True, time_step_rank=4,
    )  # fmt: skip
    with pytest.raises(UnsupportedModelError, match="mamba: layer 0 keeps"):
        PackedModel(mamba.Model(arguments), KernelPolicy())


def test_a_rule_for_a_site_that_the_model_does_not_have_is_refused_with_one_that_it_has() -> None:
    loaded = tiny_model("llama", quantized=True)
    wrong = KernelPolicy(sites={"model.layers.0.self_attn.qproj": LinearRule("gemv")})
    with pytest.raises(
        SettingsError, match=r"'model\.layers\.0\.self_attn\.qproj'.* model\.layers\.0\.self_attn\.q_proj"
    ):
        PackedModel(loaded.model, wrong)
    right = KernelPolicy(sites={"model.layers.0.self_attn.q_proj": LinearRule("gemv")})
    with PackedModel(loaded.model, right) as packed:
        assert packed.policy is right


def test_a_draft_may_lack_sites_of_its_target() -> None:
    loaded = tiny_model("llama", quantized=True)
    rules = KernelPolicy(sites={"model.layers.99.mlp.up_proj": LinearRule("gemv")})
    PackedModel(loaded.model, rules, role="draft").close()
