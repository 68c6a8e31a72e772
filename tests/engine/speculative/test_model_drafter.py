from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm.models.cache import make_prompt_cache

from engine.batch import SegmentKind
from engine.kernels.policy import forced_gemv
from engine.kv.contiguous import ContiguousStore
from engine.kv.paged import PagedStore
from engine.model.load import LoadedModel
from engine.model.packed import ForwardResult, PackedModel
from engine.request import SamplingParams
from engine.speculative.acceptance import Acceptance
from engine.speculative.drafter import DraftRequest, Proposal
from engine.speculative.model_drafter import ModelDrafter
from fixtures.tiny_models import tiny_model

VOCABULARY_SIZE = 32
PROMPTS = {"a": [1, 2, 3, 4, 5], "b": [9], "c": [7, 7, 8]}


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return tiny_model(seed=3, hidden_size=32, intermediate_size=64, vocabulary_size=VOCABULARY_SIZE)


@pytest.fixture(scope="module")
def packed(loaded: LoadedModel) -> Iterator[PackedModel]:
    with PackedModel(loaded.model, forced_gemv(), role="draft") as packed:
        yield packed


def drafted(drafter: ModelDrafter, requests: Sequence[DraftRequest]) -> dict[str, tuple[int, ...]]:
    proposals = drafter.propose(requests)
    return {request.request_id: p.tokens for request, p in zip(requests, proposals, strict=True)}


def requests_for(prompts: dict[str, list[int]], length: int, sampling: SamplingParams) -> list[DraftRequest]:
    return [DraftRequest(name, tokens, length, sampling, len(tokens)) for name, tokens in prompts.items()]


GREEDY = SamplingParams()


def test_proposals_are_the_models_own_greedy_continuation(loaded: LoadedModel, packed: PackedModel) -> None:
    expected = {}
    for name, prompt in PROMPTS.items():
        cache = make_prompt_cache(loaded.model)
        tokens, continuation = prompt, []
        for _ in range(4):
            logits = np.array(loaded.model(mx.array([tokens]), cache=cache)[0, -1])
            tokens = [int(logits.argmax())]
            continuation += tokens
        expected[name] = tuple(continuation)
    assert drafted(ModelDrafter(packed, VOCABULARY_SIZE), requests_for(PROMPTS, 4, GREEDY)) == expected


def test_the_ith_tokens_of_all_requests_share_one_forward(packed: PackedModel) -> None:
    drafter = ModelDrafter(packed, VOCABULARY_SIZE, capture_kv=True)
    requests = [DraftRequest(name, PROMPTS[name], length) for name, length in (("a", 3), ("b", 1), ("c", 2))]
    proposals = drafter.propose(requests, step=17)
    assert [len(proposal.tokens) for proposal in proposals] == [3, 1, 2]
    ids = [[segment.request_id for segment in forward.batch.segments] for forward in drafter.forwards]
    assert ids == [["a", "b", "c"], ["a", "c"], ["a"]]
    assert [forward.batch.packed_rows for forward in drafter.forwards] == [9, 2, 1]
    assert {forward.batch.step for forward in drafter.forwards} == {17}
    assert all(choice.model == "draft" for forward in drafter.forwards for choice in forward.plan)
    for forward in drafter.forwards:
        assert forward.kv_rows is not None
        assert [rows.keys.shape[0] for rows in forward.kv_rows] == [forward.batch.packed_rows] * 2
    assert drafter.propose([], step=18) == []
    assert drafter.forwards == ()


@pytest.mark.parametrize("acceptance", list(Acceptance))
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_draft_logits_that_allow_no_token_end_one_proposal(
    packed: PackedModel, acceptance: Acceptance, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = requests_for(PROMPTS, 4, SamplingParams(temperature=temperature))
    whole = drafted(ModelDrafter(packed, VOCABULARY_SIZE, acceptance=acceptance), requests)
    honest, calls = packed.forward, []

    def sick(*arguments: Any, **options: Any) -> ForwardResult:
        result = honest(*arguments, **options)
        calls.append(result)
        logits = np.array(result.logits)
        if len(calls) == 3:
            logits[1] = np.nan
        return replace(result, logits=logits)

    monkeypatch.setattr(packed, "forward", sick)
    drafter = ModelDrafter(packed, VOCABULARY_SIZE, acceptance=acceptance)
    assert drafted(drafter, requests) == whole | {"b": whole["b"][:2]}
    assert [len(forward.batch.segments) for forward in drafter.forwards] == [3, 3, 3, 2]


def test_only_positions_that_the_draft_lacks_are_fed(packed: PackedModel) -> None:
    drafter = ModelDrafter(packed, VOCABULARY_SIZE)
    prompt = PROMPTS["a"]
    proposal = drafter.propose([DraftRequest("a", prompt, 3)])[0].tokens

    def first_segment(tokens: list[int]) -> tuple[SegmentKind, int, tuple[int, ...]]:
        drafter.propose([DraftRequest("a", tokens, 1)])
        segment = drafter.forwards[0].batch.segments[0]
        return segment.kind, segment.first_position, segment.tokens

    accepted = [*prompt, *proposal, 11]
    assert first_segment(accepted) == (SegmentKind.PREFILL, 7, (proposal[2], 11))
    rejected = [*prompt, proposal[0], 12]
    assert first_segment(rejected) == (SegmentKind.DECODE, 6, (12,))
    assert first_segment(rejected) == (SegmentKind.DECODE, 6, (12,))


def test_a_rejection_that_the_drafter_was_not_told_of_is_found_by_its_tokens(packed: PackedModel) -> None:
    drafter = ModelDrafter(packed, VOCABULARY_SIZE)
    proposal = drafter.propose([DraftRequest("a", PROMPTS["a"], 4)])[0].tokens
    others = [(token + 1) % VOCABULARY_SIZE for token in proposal]
    text = [*PROMPTS["a"], proposal[0], *others[1:]]
    drafter.propose([DraftRequest("a", text, 1)])
    segment = drafter.forwards[0].batch.segments[0]
    assert (segment.first_position, segment.tokens) == (6, tuple(others[1:]))


token_ids = st.integers(0, VOCABULARY_SIZE - 1)
growths = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.lists(token_ids, max_size=3), st.booleans()),
    min_size=1,
    max_size=6,
)


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(growths, st.sampled_from([GREEDY, SamplingParams(temperature=0.9, repetition_penalty=1.4, seed=5)]))
def test_a_drafter_that_followed_the_output_proposes_what_a_fresh_one_does(
    packed: PackedModel,
    paged: bool,
    growth: list[tuple[str, int, list[int], bool]],
    sampling: SamplingParams,
) -> None:
    def new_drafter() -> ModelDrafter:
        store = PagedStore(64, block_size=4, prefix_cache=False) if paged else None
        return ModelDrafter(packed, VOCABULARY_SIZE, store=store, acceptance=Acceptance.REJECTION)

    follower = new_drafter()
    texts = {name: list(prompt) for name, prompt in PROMPTS.items()}
    last: dict[str, Proposal] = {}
    for name, accepted, own_tokens, is_told in growth:
        kept = last[name].tokens[:accepted] if name in last else ()
        if is_told:
            follower.rolled_back(name, len(texts[name]) + len(kept))
        texts[name] += [*kept, *own_tokens]
        requests = requests_for({n: texts[n] for n in sorted({name, "b"})}, 3, sampling)
        followed, fresh = follower.propose(requests), new_drafter().propose(requests)
        for request, mine, theirs in zip(requests, followed, fresh, strict=True):
            assert mine.tokens == theirs.tokens
            assert (mine.probabilities is None) == sampling.is_greedy
            if mine.probabilities is not None and theirs.probabilities is not None:
                assert mine.probabilities.tobytes() == theirs.probabilities.tobytes()
            last[request.request_id] = mine


def test_by_equality_a_draft_like_the_target_draws_what_the_target_will(packed: PackedModel) -> None:
    sampling = SamplingParams(temperature=1.0, top_p=0.9, seed=4)
    drafter = ModelDrafter(packed, VOCABULARY_SIZE)
    prompt = PROMPTS["c"]
    proposal = drafter.propose([DraftRequest("c", prompt, 4, sampling, len(prompt))])[0]
    assert proposal.probabilities is None
    tokens = list(prompt)
    for token in proposal.tokens:
        again = ModelDrafter(packed, VOCABULARY_SIZE).propose([DraftRequest("c", tokens, 1, sampling, 3)])[0]
        assert again.tokens == (token,)
        tokens.append(token)


def test_by_rejection_the_distributions_are_given_that_the_tokens_were_drawn_from(
    packed: PackedModel,
) -> None:
    sampling = SamplingParams(temperature=1.0, top_k=5, seed=4)
    drafter = ModelDrafter(packed, VOCABULARY_SIZE, acceptance=Acceptance.REJECTION)
    proposal = drafter.propose([DraftRequest("c", PROMPTS["c"], 4, sampling, 3)])[0]
    assert proposal.probabilities is not None
    assert proposal.probabilities.shape == (4, VOCABULARY_SIZE)
    assert all(row[token] > 0 for row, token in zip(proposal.probabilities, proposal.tokens, strict=True))
    assert (np.count_nonzero(proposal.probabilities, axis=1) == 5).all()


@pytest.mark.parametrize("width", [VOCABULARY_SIZE - 4, VOCABULARY_SIZE + 4])
def test_distributions_have_the_targets_width_and_never_name_a_token_outside_it(
    packed: PackedModel, width: int
) -> None:
    drafter = ModelDrafter(packed, width, acceptance=Acceptance.REJECTION)
    sampling = SamplingParams(temperature=5.0)
    requests = [DraftRequest(f"r{i}", [i], 2, sampling, 1) for i in range(20)]
    for proposal in drafter.propose(requests):
        assert proposal.probabilities is not None
        assert proposal.probabilities.shape == (2, width)
        assert max(proposal.tokens) < min(width, VOCABULARY_SIZE)


def test_a_full_memory_shortens_proposals_and_harms_nobody(packed: PackedModel) -> None:
    store = ContiguousStore(token_capacity=9)
    drafter = ModelDrafter(packed, VOCABULARY_SIZE, store=store)
    lengths = [len(tokens) for tokens in drafted(drafter, requests_for(PROMPTS, 3, GREEDY)).values()]
    assert lengths == [1, 1, 1]
    drafter.closed("a")
    unbounded = ModelDrafter(packed, VOCABULARY_SIZE)
    rest = {name: PROMPTS[name] for name in ("b", "c")}
    assert drafted(drafter, requests_for(rest, 2, GREEDY)) == drafted(unbounded, requests_for(rest, 2, GREEDY))
    store.check_integrity()


def test_closed_requests_leave_no_rows(packed: PackedModel) -> None:
    store = PagedStore(16, block_size=4, prefix_cache=False)
    drafter = ModelDrafter(packed, VOCABULARY_SIZE, store=store)
    drafter.propose(requests_for(PROMPTS, 3, GREEDY))
    assert store.state().blocks_used > 0
    for name in PROMPTS:
        drafter.closed(name)
    drafter.closed("never seen")
    drafter.rolled_back("never seen", 0)
    assert store.state().blocks_used == 0
