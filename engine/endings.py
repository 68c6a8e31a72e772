"""How requests and runs end, in the words that observers are told. Must not know schedules or K/V."""

from __future__ import annotations

from engine.errors import EngineError
from engine.observer import RunEnding
from engine.request import FinishReason

LIFECYCLE_KINDS = {
    FinishReason.CANCELLED: "cancelled",
    FinishReason.TIMEOUT: "timed_out",
    FinishReason.REFUSED: "refused",
    FinishReason.ERROR: "failed",
}
"""Kinds of lifecycle events; a request that ended by itself has `finished`."""


def ending_of_run(error: BaseException | None) -> RunEnding:
    """How a run ended that was left through `error`: an error of ours is its own sentence, others add their type."""
    if error is None:
        return RunEnding()
    if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
        return RunEnding(interrupted=True)
    lines = str(error).splitlines()
    sentence = lines[0] if lines else "no message"
    return RunEnding(failure=sentence if isinstance(error, EngineError) else f"{type(error).__name__}: {sentence}")
