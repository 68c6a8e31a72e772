from collections.abc import Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from engine.batch import Batch, Segment, SegmentKind
from engine.errors import SettingsError
from engine.kernels.policy import KernelPolicy, forced_gemv, parse_linear_rule
from engine.kv.contiguous import ContiguousStore
from engine.model.load import LoadedModel
from engine.model.packed import PackedModel
from engine.speculative.draft_models import (
    check_shared_vocabulary,
    first_layers,
    second_model_drafter,
    self_drafter,
)
from engine.speculative.drafter import DraftRequest
from fixtures.tiny_models import ByteTokenizer, tiny_model

PROMPT = (1, 2, 3, 4)


@pytest.fixture(params=[("llama", False), ("qwen3", False), ("llama", True)], ids=["llama", "qwen3", "tied"])
def target(request: pytest.FixtureRequest) -> LoadedModel:
    architecture, tied = request.param
    return tiny_model(architecture, seed=1, layers=4, hidden_size=32, intermediate_size=64, tied_embeddings=tied)


@pytest.fixture
def packed_target(target: LoadedModel) -> Iterator[PackedModel]:
    with PackedModel(target.model, forced_gemv()) as packed:
        yield packed


def target_bits(packed: PackedModel) -> bytes:
    store = ContiguousStore()
    store.admit("r", PROMPT)
    store.grow("r", len(PROMPT))
    batch = Batch(0, (Segment("r", SegmentKind.PREFILL, 0, PROMPT, 0, len(PROMPT)),))
    return packed.forward(batch, store).logits.tobytes()


def greedy_continuation(model: LoadedModel, layers: int, length: int) -> tuple[int, ...]:
    """By mlx-lm alone, on a model whose list of layers is cut for the time being."""
    whole = model.model.layers
    model.model.model.layers = whole[:layers]
    cache = make_prompt_cache(model.model)
    tokens, continuation = list(PROMPT), []
    for _ in range(length):
        tokens = [int(np.array(model.model(mx.array([tokens]), cache=cache)[0, -1]).argmax())]
        continuation += tokens
    model.model.model.layers = whole
    return tuple(continuation)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_self_draft_is_the_continuation_of_the_first_layers(target: LoadedModel, layers: int) -> None:
    expected = greedy_continuation(target, layers, 5)
    with PackedModel(target.model, forced_gemv()):
        drafter = self_drafter(target, layers, forced_gemv())
        assert drafter.propose([DraftRequest("r", PROMPT, 5)])[0].tokens == expected
        assert {len(forward.plan) for forward in drafter.forwards} == {layers * 8 + 1}
        assert drafter.name == "self"
        drafter.close()


def test_a_self_draft_leaves_the_target_as_it_was(target: LoadedModel, packed_target: PackedModel) -> None:
    before = target_bits(packed_target)
    drafter = self_drafter(target, 2, forced_gemv())
    drafter.propose([DraftRequest("r", PROMPT, 3)])
    assert target_bits(packed_target) == before
    drafter.close()
    assert target_bits(packed_target) == before
    assert len(target.model.layers) == 4


def test_the_first_layers_share_their_arrays_and_drop_the_instruments(
    target: LoadedModel, packed_target: PackedModel
) -> None:
    cut = first_layers(target.model, 2)
    arrays = {id(array) for _, array in tree_flatten(target.model.parameters())}
    own = tree_flatten(cut.parameters())
    assert own
    assert all(id(array) in arrays for _, array in own)
    assert not {type(leaf).__name__ for leaf in cut.modules()} & {"RecordedLinear", "RecordedEmbedding"}
    assert packed_target.layers == 4


def test_dense_weights_are_made_once_for_target_and_draft(target: LoadedModel, packed_target: PackedModel) -> None:
    drafter = self_drafter(target, 2, forced_gemv())
    site = "model.layers.1.mlp.up_proj"
    assert drafter._packed.sites[site] is packed_target.sites[site]
    drafter.close()


@pytest.mark.parametrize("layers", [0, 4, 9])
def test_a_self_draft_of_no_or_all_layers_is_refused(target: LoadedModel, layers: int) -> None:
    with pytest.raises(SettingsError, match=f"self_layers is {layers}, but must be from 1 to 3"):
        self_drafter(target, layers, forced_gemv())


def test_a_second_model_drafts_beside_the_target_under_its_own_policy(
    target: LoadedModel, packed_target: PackedModel
) -> None:
    before = target_bits(packed_target)
    draft = tiny_model(target.architecture, seed=2, layers=1, hidden_size=32, intermediate_size=64)
    expected = greedy_continuation(draft, 1, 3)
    drafter = second_model_drafter(target, draft, KernelPolicy(parse_linear_rule("native")))
    assert drafter.propose([DraftRequest("r", PROMPT, 3)])[0].tokens == expected
    linears = [c for c in drafter.forwards[0].plan if c.operation != "attention"]
    assert {choice.path for choice in linears} == {"native"}
    assert target_bits(packed_target) == before
    drafter.close()
    assert target_bits(packed_target) == before


class OtherBytes(ByteTokenizer):
    def token_bytes(self, token_id: int) -> bytes:
        return b"?" if token_id == 65 else super().token_bytes(token_id)


def test_a_draft_of_another_vocabulary_is_refused_by_its_first_differing_token() -> None:
    target = tiny_model(hidden_size=32)
    draft = replace(target, tokenizer=OtherBytes(), tokenizer_hash="other", source="the draft")
    with pytest.raises(SettingsError, match=r"the draft does not share .* token 65 is b'\?' there and b'A' here"):
        check_shared_vocabulary(target, draft)


def test_heads_padded_to_different_widths_share_a_vocabulary() -> None:
    target = tiny_model(hidden_size=32, vocabulary_size=300)
    check_shared_vocabulary(target, tiny_model(hidden_size=32, vocabulary_size=264))
