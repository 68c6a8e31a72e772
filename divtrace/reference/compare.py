"""Holds both runs' decision against float64: whose choice it makes, and how far off each logit is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import numpy as np

from divtrace.align.index import TraceIndex
from divtrace.align.runs import RunPair
from divtrace.divergence.logits import token_of
from divtrace.divergence.records import Token
from divtrace.errors import EvidenceError
from divtrace.origin.records import OriginResult
from divtrace.proof.decision import Deciding, deciding
from divtrace.reference.forward import ReferenceModel
from divtrace.reference.records import Agreement, LogitError, ReferenceResult
from divtrace.reference.rope import Float64
from divtrace.replay.schedule import read_run
from engine.model.load import LoadedModel
from engine.request import Request
from engine.sampling.processors import process_logits
from engine.sampling.sampler import choose_token


def compare_with_reference(runs: RunPair, origins: OriginResult, loaded: LoadedModel) -> ReferenceResult:
    """Compute the decision of `origins` in float64 from run A's tokens, penalties and bias included.

    Where that is not possible the result says why; it never fails for the architecture.
    """
    index = runs.a
    number = index.request_ids.index(origins.request_a)
    tokens = np.concatenate([np.array(index.trace.prompt(number), np.int64), index.output(number)])
    context = tuple(int(token) for token in tokens[: origins.position])
    nothing = ReferenceResult(Agreement.UNKNOWN, None, (), None, len(context))
    try:
        raw = ReferenceModel(loaded).logits(context)
        request = next(r for r in read_run(index.trace).requests if r.id == origins.request_a)
    except EvidenceError as error:
        return replace(nothing, unsupported=str(error))
    processed = _processed(raw, request, context)
    choice = choose_token(cast("Any", processed), request.sampling, request.id, origins.position).token
    a, b = deciding("A", index.trace, origins), deciding("B", runs.b.trace, origins)
    compared = [a.own_token, b.own_token] if a.is_flip else [a.own_token, a.rival_token]
    logits = tuple(_error(runs, (a, b), token, float(processed[token])) for token in compared if token is not None)
    margin = logits[0].reference - logits[1].reference if len(logits) == 2 else None
    agreement = _agreement(choice, a.own_token, b.own_token)
    return replace(nothing, agrees_with=agreement, choice=token_of(index, choice), logits=logits, margin=margin)


def _processed(raw: Float64, request: Request, context: tuple[int, ...]) -> Float64:
    # The processors' arithmetic follows the row's dtype; only their constants are float32, as in the runs.
    return cast("Float64", process_logits(cast("Any", raw), request.sampling, context, len(request.prompt)))


def _agreement(choice: int, token_a: int, token_b: int) -> Agreement:
    if token_a == token_b:
        return Agreement.BOTH if choice == token_a else Agreement.NEITHER
    return {token_a: Agreement.A, token_b: Agreement.B}.get(choice, Agreement.NEITHER)


def _error(runs: RunPair, decided: tuple[Deciding, Deciding], token: int, reference: float) -> LogitError:
    values = [_recorded(index, at, token) for index, at in zip((runs.a, runs.b), decided, strict=True)]
    errors = [None if value is None else value - reference for value in values]
    step = float(np.spacing(np.float32(abs(reference))))
    ulps = [None if error is None else error / step for error in errors]
    text: Token = token_of(runs.a, token)
    return LogitError(text, reference, values[0], values[1], errors[0], errors[1], ulps[0], ulps[1])


def _recorded(index: TraceIndex, decided: Deciding, token: int) -> float | None:
    """The processed logit of a token at the decision, None where the trace does not hold it."""
    trace = index.trace
    if not trace.has_column("sampled", "processed_top_ids"):
        return None
    ids = trace.column("sampled", "processed_top_ids", decided.record, decided.record + 1)[0].tolist()
    values = trace.column("sampled", "processed_top_values", decided.record, decided.record + 1)[0].tolist()
    return dict(zip(ids, values, strict=True)).get(token)
