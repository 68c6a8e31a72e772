"""Errors that more than one K/V store raises, so that they read the same. Must not know arrays."""

from __future__ import annotations

from engine.errors import EngineError


def never_written(request_id: str, layer: int, position: int, block: int | None = None) -> EngineError:
    """A row was asked for that nobody wrote; `block` where there are blocks."""
    place = f"position {position}" if block is None else f"position {position} (block {block})"
    return EngineError(f"request {request_id!r}, layer {layer}: K/V of {place} was read but never written.")


def not_admitted(request_id: str) -> EngineError:
    """A request without K/V memory was named."""
    return EngineError(f"request {request_id!r} has no K/V memory; admit it first.")


def already_admitted(request_id: str) -> EngineError:
    """A request was admitted twice."""
    return EngineError(f"request {request_id!r} already has K/V memory; release it before admitting it again.")


def not_next_position(request_id: str, length: int, step: int, first_position: int) -> EngineError:
    """A step begins a request's rows elsewhere than right behind the computed ones."""
    return EngineError(
        f"request {request_id!r} has {length} K/V rows but step {step} writes from position "
        f"{first_position}; compute the missing rows, or truncate before rewriting."
    )


def no_room(request_id: str, room: int, step: int, end_position: int) -> EngineError:
    """A step writes behind the room that was made for a request."""
    return EngineError(
        f"request {request_id!r} has room for {room} K/V rows but step {step} writes up to position "
        f"{end_position - 1}; grow it first."
    )
