"""The probe's time: what counts against the budget, and word of calls that compile. Must not know what is measured."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG_CALL_S = 2.0
"""A first call that takes longer is announced while it runs."""

OnLongCall = Callable[[str], None]


class Budget:
    """A clock that leaves first calls out where kernels are compiled then (`compiles`: a GPU, for up to minutes).

    On a CPU all time counts, so that the command ends when it says. `on_long_call` is told the case's name, from
    another thread, when a first call has taken LONG_CALL_S and is not done.
    """

    def __init__(self, compiles: bool = False, on_long_call: OnLongCall | None = None) -> None:
        self.compiles = compiles
        self._on_long_call = on_long_call
        self._started = time.perf_counter()
        self._left_out_s = 0.0

    @property
    def spent_s(self) -> float:
        """Seconds that count, since the start."""
        return time.perf_counter() - self._started - self._left_out_s

    @contextmanager
    def first_call(self, name: str) -> Iterator[None]:
        """Around calls that may compile a kernel of the case `name`."""
        timer = threading.Timer(LONG_CALL_S, self._announce, (name,))
        timer.daemon = True
        started = time.perf_counter()
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            if self.compiles:
                self._left_out_s += time.perf_counter() - started

    def _announce(self, name: str) -> None:
        if self._on_long_call is not None:
            self._on_long_call(name)
