"""What the invariant kernels need of the machine: numba, its threads, its vector registers. Must know no kernel."""

from __future__ import annotations

import importlib.util
from functools import cache

from engine.errors import EngineError

INSTALL_SENTENCE = (
    "The invariant kernels need numba, which is not installed; run `pip install 'divtrace[invariant]'` or choose"
    " another kernel policy (gemv gives the same guarantee, slower)."
)


@cache
def available() -> bool:
    """True when numba can be imported."""
    return importlib.util.find_spec("numba") is not None


def require_numba() -> None:
    """Raise EngineError with the way out when numba is missing."""
    if not available():
        raise EngineError(INSTALL_SENTENCE)


@cache
def most_threads() -> int:
    """Threads of numba's pool: one per core, unless NUMBA_NUM_THREADS says otherwise."""
    require_numba()
    import numba

    return int(numba.config.NUMBA_NUM_THREADS)


def checked_threads(count: int | None) -> int:
    """`count`, or the whole pool for None.

    Raises:
        EngineError: numba is missing, or `count` is not between 1 and the size of the pool.
    """
    most = most_threads()
    if count is None:
        return most
    if not 1 <= count <= most:
        raise EngineError(f"The invariant kernels can use 1 to {most} threads here, not {count}.")
    return count


@cache
def block_rows() -> int:
    """Rows to run side by side: six where 32 vector registers of sixteen floats exist, else one."""
    import llvmlite.binding as llvm  # type: ignore[import-untyped, unused-ignore]

    return 6 if llvm.get_host_cpu_features().get("avx512f", False) else 1
