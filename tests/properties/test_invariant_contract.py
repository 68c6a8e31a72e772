"""Two sides of the invariant policy: no thread count changes a bit, and a row-dependent kernel is caught."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from engine.kernels import linear
from engine.kernels.policy import LinearPath
from engine.kernels.site import LinearSite
from engine.model.invariant_attention import InvariantAttention
from engine.request import Arrival, Request, SamplingParams
from engine.settings import EngineSettings
from fixtures.tiny_models import tiny_model
from tests.engine.collector import collect

ROOT = Path(__file__).parents[2]

MIXED = EngineSettings.model_validate(
    {
        "policy": "invariant",
        "max_active": 3,
        "token_budget": 24,
        "prefix_cache": True,
        "block_size": 4,
        "max_model_length": 128,
        "speculation": {"drafter": "prompt-lookup", "tokens": 3},
    }
)
ALONE = EngineSettings(policy="invariant", max_active=1, kv="contiguous")


def requests() -> list[Request]:
    stem = tuple(range(40, 64))
    return [
        Request("first", stem * 2, 20),
        Request("second", (*stem, 7, 9), 16, SamplingParams(temperature=0.8, seed=5), arrival=Arrival(3)),
        Request("third", tuple(range(100, 170)), 12, arrival=Arrival(6)),
    ]


def run_hash(quantized: bool) -> str:
    """Of everything that was decided and written."""
    seen = collect(tiny_model("llama", quantized=quantized), MIXED, requests())
    return hashlib.sha256(repr((sorted(seen.decisions.items()), sorted(seen.kv.items()))).encode()).hexdigest()


def kv_bytes(settings: EngineSettings, run: Sequence[Request]) -> list[bytes]:
    """K/V of the first request of `run`, by position."""
    return collect(tiny_model("llama", quantized=True), settings, run).of_request(run[0]).kv


@pytest.mark.parametrize("quantized", [False, True])
def test_the_number_of_threads_changes_no_bit_of_a_mixed_run(quantized: bool) -> None:
    call = f"from tests.properties.test_invariant_contract import run_hash; print(run_hash({quantized}))"
    hashes = set()
    for numba_threads, blas_threads in (("1", "2"), ("2", "1")):
        environment = os.environ | {"NUMBA_NUM_THREADS": numba_threads, "OPENBLAS_NUM_THREADS": blas_threads}
        ran = subprocess.run(
            [sys.executable, "-c", call], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
        )
        hashes.add(ran.stdout.strip())
    assert len(hashes) == 1
    assert len(hashes.pop()) == 64


def test_company_changes_no_bit_and_a_linear_that_counts_its_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = requests()
    assert kv_bytes(MIXED, run) == kv_bytes(ALONE, run[:1])
    sound = linear.CPU_KERNELS[LinearPath.INVARIANT]

    def row_dependent(site: LinearSite, x: mx.array) -> mx.array:
        out = sound(site, x)
        return out if x.shape[0] < 30 else out * np.float32(1 + 2**-23)

    monkeypatch.setitem(linear.CPU_KERNELS, LinearPath.INVARIANT, row_dependent)
    assert kv_bytes(MIXED, run) != kv_bytes(ALONE, run[:1])


def test_an_attention_that_counts_its_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    run = requests()
    sound = InvariantAttention.attend

    def row_dependent(
        self: InvariantAttention,
        layer: int,
        queries: mx.array,
        scale: float,
        window: int | None,
        sinks: mx.array | None,
    ) -> mx.array:
        out = sound(self, layer, queries, scale, window, sinks)
        return out if queries.shape[0] < 30 else out * np.float32(1 + 2**-23)

    monkeypatch.setattr(InvariantAttention, "attend", row_dependent)
    assert kv_bytes(MIXED, run) != kv_bytes(ALONE, run[:1])
