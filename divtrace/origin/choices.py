"""Does a committed token follow from its own run's recorded logits? Needs one run alone, so drift cannot hide it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from divtrace.align.index import TraceIndex
from divtrace.trace.schema import Level
from engine.request import SamplingParams
from engine.sampling.processors import process_logits

_SAMPLING = TypeAdapter(SamplingParams)


def choice_faults(index: TraceIndex, request: int, position: int, record: int) -> tuple[str, ...]:
    """What is wrong with the decision in row `record` of table `sampled`, in words; empty where nothing can be told."""
    sampling = _sampling_of(index, request)
    if sampling is None:
        return ()
    faults = [*_randomness(index, record, sampling)]
    if index.has(Level.LOGITS):
        faults += [*_largest(index, record, sampling), *_penalties(index, request, position, record, sampling)]
    return tuple(faults)


def _sampling_of(index: TraceIndex, request: int) -> SamplingParams | None:
    try:
        return _SAMPLING.validate_python(index.request_settings(request).get("sampling"))
    except ValidationError:
        return None


def _randomness(index: TraceIndex, record: int, sampling: SamplingParams) -> Iterator[str]:
    number = float(index.trace.column("sampled", "random_number", record, record + 1)[0])
    if sampling.is_greedy and not math.isnan(number):
        yield "a random number was drawn although the temperature is 0"
    if not sampling.is_greedy and math.isnan(number):
        yield f"no random number was drawn although the temperature is {sampling.temperature:g}"


def _largest(index: TraceIndex, record: int, sampling: SamplingParams) -> Iterator[str]:
    if not sampling.is_greedy:
        return
    chosen = int(index.trace.column("sampled", "chosen", record, record + 1)[0])
    logit = float(index.trace.column("sampled", "chosen_logit", record, record + 1)[0])
    top = _top(index, record, "processed_top")
    if not top or math.isnan(logit):
        return
    largest = max(top.values())
    first = min(token for token, value in top.items() if value == largest)
    if logit < largest:
        yield f"token {chosen} was committed with logit {logit:.6f}, token {first} has {largest:.6f}"
    elif chosen > first:
        yield f"tokens {first} and {chosen} tie exactly and the higher id was committed"


def _penalties(index: TraceIndex, request: int, position: int, record: int, sampling: SamplingParams) -> Iterator[str]:
    """Hold processed logits against what bias and penalties make of the raw ones, bit for bit.

    Other engines penalize by other formulas, so only traces of this project's engine are held to its own.
    """
    if "policy" not in index.trace.header.settings or sampling.leaves_logits_unchanged:
        return
    raw, processed = _top(index, record, "top"), _top(index, record, "processed_top")
    row = np.zeros(index.trace.header.vocabulary_size, np.float32)
    row[list(raw)] = list(raw.values())
    prompt = [int(token) for token in index.trace.prompt(request)]
    history = [*prompt, *index.output(request).tolist()][:position]
    expected = process_logits(row, sampling, history, len(prompt))
    chosen = int(index.trace.column("sampled", "chosen", record, record + 1)[0])
    if sampling.is_greedy and chosen == min(raw, key=lambda token: (-expected[token], token)):
        return  # whatever the penalties did, right ones choose the same token
    for token in sorted(raw.keys() & processed.keys()):
        if np.float32(processed[token]) != expected[token]:
            yield (
                f"token {token} has logit {processed[token]:.6f} after penalties, which make {expected[token]:.6f} of "
                f"its {raw[token]:.6f}"
            )
            return


def _top(index: TraceIndex, record: int, name: str) -> Mapping[int, float]:
    ids: Any = index.trace.column("sampled", f"{name}_ids", record, record + 1)[0]
    values: Any = index.trace.column("sampled", f"{name}_values", record, record + 1)[0]
    return dict(zip(ids.tolist(), values.tolist(), strict=True))
