"""Refuses requests that make no sense, before anything is scheduled. Must not know queues, K/V or models."""

from __future__ import annotations

import math

from engine.errors import SettingsError
from engine.request import Request
from engine.sampling.checks import check_sampling

LONGEST_ID = 200
"""Characters of a request id: it stands in traces, metrics and tables."""


def check_request(request: Request, vocabulary_size: int) -> None:
    """Check every field against its range; what a workload file refuses is refused here too.

    Raises:
        SettingsError: names the request and the first field that is out of range, with its value.
    """
    if not 1 <= len(request.id) <= LONGEST_ID:
        raise SettingsError(f"request id {request.id[:20]!r} has {len(request.id)} characters; use 1 to {LONGEST_ID}.")
    if not request.prompt or request.max_tokens < 1:
        raise SettingsError(f"request {request.id!r} needs at least one prompt token and max_tokens of 1 or more.")
    _check_tokens(request, "token", request.prompt, vocabulary_size)
    _check_tokens(request, "stop token", request.stop_token_ids, vocabulary_size)
    _check_ends(request)
    _check_arrival(request)
    check_sampling(request.sampling, vocabulary_size)


def _check_tokens(request: Request, what: str, tokens: tuple[int, ...], vocabulary_size: int) -> None:
    outside = next((token for token in tokens if not 0 <= token < vocabulary_size), None)
    if outside is not None:
        raise SettingsError(
            f"request {request.id!r} has {what} {outside}, outside the vocabulary of {vocabulary_size}."
        )


def _check_ends(request: Request) -> None:
    if not all(request.stop_strings):
        raise SettingsError(f"request {request.id!r}: a stop string is empty; remove it.")
    if request.cancel_at_step is not None and request.cancel_at_step < 0:
        raise SettingsError(
            f"request {request.id!r}: cancel_at_step is {request.cancel_at_step}, but steps are numbered from 0; use 0 "
            "or more, or None."
        )
    timeout_s = request.timeout_s
    if timeout_s is not None and not (math.isfinite(timeout_s) and timeout_s > 0.0):
        raise SettingsError(
            f"request {request.id!r}: timeout_s is {timeout_s}, but must be finite and above 0, or None for no limit."
        )


def _check_arrival(request: Request) -> None:
    arrival = request.arrival
    if arrival.at_step < 0:
        raise SettingsError(
            f"request {request.id!r}: its arrival is at step {arrival.at_step}, but steps are numbered from 0; "
            "use 0 or more."
        )
    if arrival.after_request is None:
        return
    if arrival.after_request == request.id:
        raise SettingsError(f"request {request.id!r} arrives after itself; name another request.")
    if arrival.after_tokens < 1:
        raise SettingsError(
            f"request {request.id!r}: it arrives after {arrival.after_tokens} tokens of {arrival.after_request!r}, but "
            "must wait for 1 or more."
        )
