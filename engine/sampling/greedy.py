"""The greedy rule: highest logit, lowest id on a tie. Knows nothing of sampling parameters."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine.errors import EngineError


def greedy_token(logits: npt.NDArray[np.float32], where: str = "logits") -> int:
    """Return the id of the highest logit; among equal ones the lowest id.

    Args:
        logits: float32, shape (vocabulary,).
        where: names the row in an error, for example `request 'a', position 12`.

    Raises:
        EngineError: a logit is NaN, or no token is possible (all are -inf).
    """
    token = int(logits.argmax())
    highest = float(logits[token])
    if math.isnan(highest):  # argmax returns the first NaN when there is one
        raise EngineError(f"{where}: the logit of token {token} is NaN; the model's output cannot be used.")
    if highest == -math.inf:
        raise EngineError(f"{where}: every logit is -inf, so no token can be chosen; check the logit bias.")
    return token
