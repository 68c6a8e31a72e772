"""Chi-square tests of random numbers, of sampling and of rejection sampling.

Each test has an error rate of one in a million: that is how often a right implementation would fail it for
a seed picked at random. The seeds are fixed, so a test that passes once always passes. The last tests break
rejection sampling on purpose and demand that the same statistic notices.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest

from engine.request import SamplingParams
from engine.sampling.processors import process_logits, process_rows
from engine.sampling.random_numbers import Stream, uniform
from engine.sampling.sampler import choose_token, draw_token, probabilities
from engine.speculative import verify as verification
from engine.speculative.drafter import Proposal

ERROR_RATE = 1e-6
LEAST_EXPECTED = 5.0

Text = tuple[int, ...]
Rows = npt.NDArray[np.float32]


def p_value(counts: Mapping[Text, int], expected: Mapping[Text, float]) -> float:
    """Chance of a chi-square statistic at least as large as that of `counts` under `expected` probabilities.

    Rare cells are merged until each expects 5 and the degrees of freedom are even, where the chance has a
    closed form. A count in a cell of probability 0 is impossible.
    """
    if any(expected.get(cell, 0.0) == 0.0 for cell in counts):
        return 0.0
    total = sum(counts.values())
    cells = sorted((share * total, counts.get(cell, 0)) for cell, share in expected.items() if share > 0.0)
    while len(cells) > 2 and (cells[0][0] < LEAST_EXPECTED or len(cells) % 2 == 0):
        cells = sorted([(cells[0][0] + cells[1][0], cells[0][1] + cells[1][1]), *cells[2:]])
    assert len(cells) % 2 == 1, "an even number of cells has no closed form"
    half = sum((count - wanted) ** 2 / wanted for wanted, count in cells) / 2
    terms = (math.exp(-half + k * math.log(half) - math.lgamma(k + 1)) for k in range((len(cells) - 1) // 2))
    return sum(terms) if half > 0 else 1.0


def test_the_statistic_has_the_chances_that_tables_give() -> None:
    # 10 degrees of freedom: 18.307 is exceeded in 5 % of cases
    expected = {(cell,): 1 / 11 for cell in range(11)}
    shift = math.sqrt(18.307 * 1000 / 2)
    counts = dict.fromkeys(expected, 1000) | {(0,): 1000 + shift, (1,): 1000 - shift}
    assert p_value(counts, expected) == pytest.approx(0.05, abs=1e-4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "places",
    [
        [(0, "request", position) for position in range(20_000)],
        [(seed, "request", 3) for seed in range(20_000)],
        [(0, f"request-{number}", 3) for number in range(20_000)],
    ],
    ids=["positions", "seeds", "requests"],
)
def test_numbers_are_uniform_along_each_part_of_their_key(places: list[tuple[int, str, int]]) -> None:
    counts = Counter((int(uniform(*place) * 101),) for place in places)
    assert p_value(counts, {(cell,): 1 / 101 for cell in range(101)}) > ERROR_RATE


@pytest.mark.parametrize("other", [Stream.DRAFT, Stream.ACCEPT, Stream.RESIDUAL, None])
def test_numbers_of_two_streams_and_of_neighbouring_positions_are_independent(other: Stream | None) -> None:
    def cell(position: int) -> Text:
        second = uniform(1, "r", position + 1) if other is None else uniform(1, "r", position, other)
        return int(uniform(1, "r", position) * 7), int(second * 7)

    counts = Counter(cell(position) for position in range(20_000))
    assert p_value(counts, dict.fromkeys(product(range(7), repeat=2), 1 / 49)) > ERROR_RATE


TARGET = np.array([[0.4, 1.5, -0.3], [1.1, -0.2, 0.9], [0.0, 0.3, -1.2]], np.float32)
TOKENS = range(3)
PROMPT = (0,)
OUTPUT_LENGTH = 3
SAMPLES = 3000

PARAMETERS = {
    "temperature": SamplingParams(temperature=1.0, seed=11),
    "cold": SamplingParams(temperature=0.5, seed=12),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8, seed=13),
    "top-k": SamplingParams(temperature=1.3, top_k=2, seed=14),
    "penalties": SamplingParams(temperature=1.0, repetition_penalty=1.7, presence_penalty=0.4, seed=15),
}

DRAFTS = {
    "equal to the target": TARGET,
    "uniform": np.zeros((3, 3), np.float32),
    "contrary": -2 * TARGET,
    "without token 1": TARGET + np.array([0, -np.inf, 0], np.float32),
    "point mass": np.where(np.eye(3) > 0, 0, -np.inf).astype(np.float32),
}


def target_row(history: Text, params: SamplingParams) -> Rows:
    """Processed logits after `history`: a Markov chain whose next token depends on the last."""
    return process_logits(TARGET[history[-1]], params, history, len(PROMPT))


def target_law(params: SamplingParams) -> dict[Text, float]:
    """Exact probability of every output."""
    law: dict[Text, float] = {}
    for output in product(TOKENS, repeat=OUTPUT_LENGTH):
        chance = 1.0
        for i, token in enumerate(output):
            chance *= float(probabilities(target_row((*PROMPT, *output[:i]), params), params)[token])
        law[output] = chance
    return law


@dataclass(frozen=True, slots=True)
class Draft:
    """A Markov drafter: samples proposals, and gives its distributions or keeps them to itself."""

    logits: Rows
    with_probabilities: bool

    def propose(self, history: Text, length: int, request_id: str, seed: int) -> Proposal:
        tokens: list[int] = []
        rows = []
        for i in range(length):
            last = tokens[-1] if tokens else history[-1]
            rows.append(probabilities(self.logits[last], SamplingParams(temperature=1.0)))
            number = uniform(seed, request_id, len(history) + i, Stream.DRAFT)
            tokens.append(draw_token(rows[-1], number))
        return Proposal(tuple(tokens), np.stack(rows) if self.with_probabilities else None)


def speculated_output(draft: Draft, params: SamplingParams, request_id: str, proposed: int, bonus: bool) -> Text:
    """Run one request to its end, `proposed` tokens a step."""
    history = PROMPT
    while len(history) < len(PROMPT) + OUTPUT_LENGTH:
        proposal = draft.propose(history, proposed, request_id, params.seed)
        inputs = (history[-1], *proposal.tokens)[: proposed + bonus]
        rows = process_rows(TARGET[list(inputs)], params, history, len(PROMPT), proposal.tokens)
        history += verification.verify(rows, proposal, params, request_id, len(history)).committed
    return history[len(PROMPT) :][:OUTPUT_LENGTH]


def outputs(draft: Draft, params: SamplingParams, proposed: int = 2, bonus: bool = True) -> Iterable[Text]:
    return (speculated_output(draft, params, f"r{i}", proposed, bonus) for i in range(SAMPLES))


@pytest.mark.parametrize("params", PARAMETERS.values(), ids=PARAMETERS.keys())
def test_plain_sampling_follows_the_distribution_of_its_parameters(params: SamplingParams) -> None:
    def output(request_id: str) -> Text:
        history = PROMPT
        for _ in range(OUTPUT_LENGTH):
            history += (choose_token(target_row(history, params), params, request_id, len(history)).token,)
        return history[len(PROMPT) :]

    assert p_value(Counter(output(f"r{i}") for i in range(SAMPLES)), target_law(params)) > ERROR_RATE


@pytest.mark.parametrize(
    ("parameters", "draft"),
    [*(("temperature", draft) for draft in DRAFTS), *product(list(PARAMETERS)[1:], ("uniform", "contrary"))],
)
def test_rejection_sampling_keeps_the_targets_distribution(parameters: str, draft: str) -> None:
    params = PARAMETERS[parameters]
    counts = Counter(outputs(Draft(DRAFTS[draft], with_probabilities=True), params))
    assert p_value(counts, target_law(params)) > ERROR_RATE


@pytest.mark.parametrize(("proposed", "bonus"), [(1, True), (1, False), (2, False), (4, True)])
def test_the_distribution_is_kept_at_every_proposal_length(proposed: int, bonus: bool) -> None:
    params = PARAMETERS["temperature"]
    draft = Draft(DRAFTS["uniform"], with_probabilities=True)
    assert p_value(Counter(outputs(draft, params, proposed, bonus)), target_law(params)) > ERROR_RATE


def test_acceptance_by_equality_keeps_the_targets_distribution() -> None:
    params = PARAMETERS["penalties"]
    draft = Draft(DRAFTS["uniform"], with_probabilities=False)
    assert p_value(Counter(outputs(draft, params)), target_law(params)) > ERROR_RATE


Breakage = Callable[[pytest.MonkeyPatch], None]


def draw_the_replacement_from_the_target(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verification, "residual", lambda target, drafted: target)  # noqa: ARG005


def exchange_streams(patch: pytest.MonkeyPatch, streams: Mapping[Stream, Stream]) -> None:
    number = verification.Place.uniform
    patch.setattr(verification.Place, "uniform", lambda place, stream: number(place, streams.get(stream, stream)))


def draw_the_replacement_with_the_number_of_the_test(patch: pytest.MonkeyPatch) -> None:
    exchange_streams(patch, {Stream.RESIDUAL: Stream.ACCEPT})


def accept_with_the_number_that_drafted(patch: pytest.MonkeyPatch) -> None:
    exchange_streams(patch, {Stream.ACCEPT: Stream.DRAFT})


def accept_every_possible_proposal(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(verification.Place, "uniform", lambda *_: 0.0)


@pytest.mark.parametrize(
    ("breakage", "draft"),
    [
        (draw_the_replacement_from_the_target, "uniform"),
        (draw_the_replacement_with_the_number_of_the_test, "point mass"),
        (accept_with_the_number_that_drafted, "uniform"),
        (accept_every_possible_proposal, "uniform"),
    ],
)
def test_the_statistic_notices_a_broken_rejection_sampler(
    breakage: Breakage, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = PARAMETERS["temperature"]
    breakage(monkeypatch)
    counts = Counter(outputs(Draft(DRAFTS[draft], with_probabilities=True), params))
    assert p_value(counts, target_law(params)) < ERROR_RATE
