from __future__ import annotations

import subprocess
import sys

import pytest

from engine.errors import EngineError
from engine.kernels.invariant.runtime import checked_threads, most_threads

WITHOUT_NUMBA = """
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "numba" else found(name, *rest)
sys.modules["numba"] = None
import numpy as np
import engine.kernels.invariant as invariant
from engine.errors import EngineError
assert not invariant.available()
try:
    invariant.linear_dense(np.ones((1, 16), np.float32), np.ones((2, 16), np.float32))
except EngineError as error:
    print(error)
"""


def test_without_numba_the_package_imports_and_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_NUMBA], capture_output=True, text=True, check=True)
    assert "needs numba" in done.stdout.replace("need numba", "needs numba")
    assert "divtrace[invariant]" in done.stdout


def test_the_second_process_compiles_nothing() -> None:
    counting = (
        "import numpy as np; from engine.kernels.invariant import linear_dense, linears;"
        "linear_dense(np.ones((1, 16), np.float32), np.ones((2, 16), np.float32));"
        "from engine.kernels.invariant import linear_loops;"
        "print(sum(linear_loops.multiply.stats.cache_misses.values()))"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", counting], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_a_thread_count_outside_the_pool_is_refused() -> None:
    assert checked_threads(None) == most_threads()
    with pytest.raises(EngineError, match="threads"):
        checked_threads(most_threads() + 1)
