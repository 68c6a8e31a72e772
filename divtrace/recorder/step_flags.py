"""What can be wrong with a step, as bits of `steps/flags`."""

from __future__ import annotations

from enum import IntFlag


class StepFlag(IntFlag):
    """What went wrong in a step: bits of `steps/flags`."""

    LOGITS_NOT_FINITE = 1
    KV_NOT_FINITE = 2
    AUDIT_FAILED = 4


NO_FLAGS = StepFlag(0)
