"""The greedy rule: highest logit, lowest id on a tie. Knows nothing of sampling parameters."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine.errors import LogitsError


def greedy_token(logits: npt.NDArray[np.float32], where: str = "logits") -> int:
    """Return the id of the highest logit; among equal ones the lowest id.

    Args:
        logits: float32, shape (vocabulary,).
        where: names the row in an error, for example `request 'a', position 12`.

    Raises:
        LogitsError: a logit is NaN or +inf, or no token is possible (all are -inf).
    """
    token = int(logits.argmax())
    highest = float(logits[token])
    if math.isnan(highest):  # argmax returns the first NaN when there is one
        raise LogitsError(f"{where}: the logit of token {token} is NaN; the model's output cannot be used.")
    if highest == math.inf:
        raise LogitsError(f"{where}: the logit of token {token} is infinite; the model's output cannot be used.")
    if highest == -math.inf:
        raise LogitsError(f"{where}: every logit is -inf, so no token can be chosen; check the logit bias.")
    return token


def largest_number(logits: npt.NDArray[np.float32]) -> int:
    """The id of the highest logit, NaN counted as lowest, lowest id on a tie: how a failed choice is noted."""
    return int(np.where(np.isnan(logits), -np.inf, logits).argmax())
