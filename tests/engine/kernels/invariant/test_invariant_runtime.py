from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

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
        "print(sum(linear_loops.multiply_arrays.stats.cache_misses.values()))"
    )
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", counting], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"


def test_a_thread_count_outside_the_pool_is_refused() -> None:
    assert checked_threads(None) == most_threads()
    with pytest.raises(EngineError, match="threads"):
        checked_threads(most_threads() + 1)


DIGEST = """
import hashlib
import mlx.core as mx, numpy as np
from engine.kernels.invariant import linear_affine, linear_dense, paged_attention, visible_keys
random = np.random.default_rng(0)
x, weight = (random.standard_normal(shape).astype(np.float32) for shape in ((7, 192), (13, 192)))
packed, scales, biases = (np.array(part) for part in mx.quantize(mx.array(weight), 32, 4))
queries, keys, values = random.standard_normal((3, 7, 2, 32)).astype(np.float32)
visible = visible_keys([np.arange(7)], np.zeros(7), np.arange(1, 8), pool_slots=7)
results = (
    linear_dense(x, weight),
    linear_affine(x, packed, scales, biases, bits=4, group_size=32),
    linear_affine(x[:1], packed, scales, biases, bits=4, group_size=32),
    paged_attention(queries, keys, values, visible, scale=0.2),
)
print(hashlib.sha256(b"".join(result.tobytes() for result in results)).hexdigest())
"""


def digest_of_kernels(environment: dict[str, str]) -> str:
    command = [sys.executable, "-c", DIGEST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return done.stdout


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names an x86 processor")
def test_another_processor_s_instructions_give_the_same_bits(tmp_path: Path) -> None:
    older = {
        "NUMBA_CPU_NAME": "haswell",
        "NUMBA_CPU_FEATURES": "+avx,+avx2,+fma,+f16c,+sse4.2",
        "NUMBA_CACHE_DIR": str(tmp_path),
    }
    assert digest_of_kernels(older) == digest_of_kernels({})
