"""Which choices of a run a playback can make again.

Under rejection sampling a choice depends on the distributions that the draft model drew from. A trace does not hold
these, and a playback runs no draft model: it computes the same logits, and chooses from them as without a draft.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from divtrace.trace.reader import Trace
from engine.speculative.acceptance import Acceptance


def repeatable_choices(trace: Trace) -> npt.NDArray[np.bool_]:
    """Per row of table `sampled`: False where the choice was made by rejection sampling; (rows,) bool."""
    steps, requests = (trace.column("sampled", name).astype(np.int64) for name in ("step", "request"))
    speculation: Any = trace.header.settings.get("speculation")
    acceptance = speculation.get("acceptance") if isinstance(speculation, dict) else None
    if acceptance != Acceptance.REJECTION.value:
        return np.ones(steps.size, np.bool_)
    drafted = _keys(*(trace.column("drafts", name).astype(np.int64) for name in ("step", "request")))
    is_drawn = ~np.isnan(trace.column("sampled", "random_number"))
    return ~(is_drawn & np.isin(_keys(steps, requests), drafted))


def _keys(steps: npt.NDArray[np.int64], requests: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (steps << 32) | requests
