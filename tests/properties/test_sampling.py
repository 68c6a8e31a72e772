"""Processors, filters and stop rules against slow definitions of what they must do."""

from collections import Counter
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.request import SamplingParams
from engine.sampling.processors import process_logits
from engine.sampling.sampler import choose_token, probabilities
from engine.sampling.stops import StopRules, StopWatch
from engine.sampling.text import IncrementalText

VOCABULARY_SIZE = 12

finite_logits = st.lists(st.floats(-30, 30, width=32), min_size=VOCABULARY_SIZE, max_size=VOCABULARY_SIZE).map(
    lambda values: np.array(values, np.float32)
)
tied_logits = st.lists(st.sampled_from([-1.0, 0.0, 2.0]), min_size=VOCABULARY_SIZE, max_size=VOCABULARY_SIZE).map(
    lambda values: np.array(values, np.float32)
)
logits_rows = finite_logits | tied_logits
token_ids = st.integers(0, VOCABULARY_SIZE - 1)
penalties = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 0.5, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7, -0.4]),
    frequency_penalty=st.sampled_from([0.0, 0.3, -0.2]),
    logit_bias=st.lists(st.tuples(token_ids, st.sampled_from([-np.inf, -1.5, 2.0])), max_size=3).map(tuple),
)
filters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.2, 1.0, 3.0]),
    top_k=st.integers(0, VOCABULARY_SIZE + 2),
    top_p=st.floats(1e-6, 1.0),
    min_p=st.floats(0.0, 1.0),
)


def slowly_processed(
    logits: npt.NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> list[np.float32]:
    values = dict(enumerate(logits))
    for token, bias in params.logit_bias:
        values[token] = np.float32(values[token] + np.float32(bias))
    if params.repetition_penalty != 1.0:
        for token in {*prompt, *output}:
            factor = np.float32(params.repetition_penalty)
            values[token] = values[token] / factor if values[token] > 0 else values[token] * factor
    for token, count in Counter(output).items():
        values[token] = values[token] - np.float32(params.frequency_penalty) * np.float32(count)
        values[token] = values[token] - np.float32(params.presence_penalty)
    return [values[token] for token in range(VOCABULARY_SIZE)]


@given(logits_rows, penalties, st.lists(token_ids, min_size=1), st.lists(token_ids))
def test_penalties_equal_their_slow_definition_bit_for_bit(
    logits: npt.NDArray[np.float32], params: SamplingParams, prompt: list[int], output: list[int]
) -> None:
    processed = process_logits(logits, params, [*prompt, *output], len(prompt))
    expected = np.array(slowly_processed(logits, params, prompt, output), np.float32)
    # a zero may keep or lose its sign where nothing is subtracted from it; it is the same logit
    assert (processed + np.float32(0)).tobytes() == (expected + np.float32(0)).tobytes()


@given(logits_rows, filters)
def test_filters_keep_a_run_of_the_most_likely_tokens_as_short_as_they_say(
    logits: npt.NDArray[np.float32], params: SamplingParams
) -> None:
    full = probabilities(logits, SamplingParams(temperature=params.temperature))
    filtered = probabilities(logits, params)
    ranked = sorted(range(VOCABULARY_SIZE), key=lambda token: (-full[token], token))
    limit = params.top_k or VOCABULARY_SIZE
    mass = sum(full[token] for token in ranked[:limit])
    expected: list[int] = []
    before = 0.0
    for token in ranked[:limit]:
        close = abs(before - params.top_p * mass) < 1e-12 or abs(full[token] - params.min_p * full[ranked[0]]) < 1e-12
        if close:
            return  # decided by rounding, which the example tests pin down
        if expected and (before >= params.top_p * mass or full[token] < params.min_p * full[ranked[0]]):
            break
        expected.append(token)
        before += full[token]
    assert sorted(expected) == np.flatnonzero(filtered).tolist()
    np.testing.assert_allclose(filtered[expected], full[expected] / full[expected].sum(), rtol=1e-12)


@given(logits_rows, filters, st.integers(0, 100), st.permutations(range(5)))
def test_a_choice_depends_on_its_own_row_alone(
    logits: npt.NDArray[np.float32], params: SamplingParams, position: int, order: list[int]
) -> None:
    rows = np.stack([np.roll(logits, shift) for shift in range(5)])
    together = {i: choose_token(rows[i], params, f"request {i}", position) for i in order}
    for i in range(5):
        alone = choose_token(np.roll(logits, i), params, f"request {i}", position)
        assert together[i] == alone
        assert probabilities(rows[i], params)[alone.token] > 0


def split_bytes(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in pairwise(edges)]


@given(st.binary(max_size=30) | st.text(max_size=12).map(str.encode), st.lists(st.integers(0, 99)))
def test_text_does_not_depend_on_where_tokens_split_the_bytes(data: bytes, cuts: list[int]) -> None:
    pieces = split_bytes(data, cuts)
    text = IncrementalText(pieces.__getitem__)
    shown = "".join(text.push(token) for token in range(len(pieces))) + text.finish()
    assert shown == data.decode("utf-8", errors="replace")


def first_stop(text: str, strings: list[str]) -> str:
    """The text that stays: try every end in rising order, the longest matching string first."""
    for end in range(1, len(text) + 1):
        for string in sorted(strings, key=len, reverse=True):
            if text[:end].endswith(string):
                return text[: end - len(string)]
    return text


@settings(max_examples=300)
@given(
    st.text(alphabet="abé", max_size=20),
    st.lists(st.text(alphabet="abé", min_size=1, max_size=4), max_size=3),
    st.lists(st.integers(0, 99)),
)
def test_stop_strings_cut_at_the_same_place_however_the_text_is_split(
    text: str, strings: list[str], cuts: list[int]
) -> None:
    pieces = split_bytes(text.encode(), cuts)
    watching = StopWatch(StopRules(strings=tuple(strings)), pieces.__getitem__)
    shown = ""
    hit = None
    for token in range(len(pieces)):
        emitted = watching.push(token)
        shown += emitted.text
        hit = emitted.hit
        if hit is not None:
            break
    if hit is None:
        shown += watching.finish().text
    assert shown == first_stop(text, strings)
    assert (hit is None) == (shown == text)
    assert hit is None or hit.text_length == len(shown)
