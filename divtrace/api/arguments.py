"""Checks of numbers that a caller gives. Must not know what they are for."""

from __future__ import annotations

from divtrace.errors import DivtraceError

LEAST_TOP_K, MOST_TOP_K = 2, 1024


def whole_number(name: str, value: int, least: int, most: int | None = None) -> int:
    """`value`, when it is a whole number from `least` to `most`.

    Raises:
        DivtraceError: it is something else; the sentence names it and the range.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        span = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise DivtraceError(f"{name} is {value!r}; give a whole number {span}.")
    return value
