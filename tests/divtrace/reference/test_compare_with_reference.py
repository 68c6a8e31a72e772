"""Which run is right, and by how much: run A is exact here, run B rounds its operands to half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from divtrace.reference.compare import compare_with_reference
from divtrace.reference.records import Agreement
from engine.request import SamplingParams
from tests.divtrace.proof.pairs import FLIPPING_PROMPTS, handoff, model, opened, record

PENALIZED = SamplingParams(repetition_penalty=1.2, logit_bias=((65, 0.5),))


@pytest.mark.parametrize("sampling", [SamplingParams(), PENALIZED], ids=["plain", "penalties"])
def test_float64_agrees_with_row_wise_gemv_and_not_with_half_operands(tmp_path: Path, sampling: SamplingParams) -> None:
    for first in (*FLIPPING_PROMPTS, 0, 30, 60, 90, 120):
        requests = [replace(request, sampling=sampling) for request in handoff(first, 25)[:1]]
        exact = record(tmp_path / f"{first}-exact.h5", requests, policy="gemv")
        rounded = record(tmp_path / f"{first}-rounded.h5", requests, policy="gemm")
        with opened(exact, rounded) as pair:
            found = compare_with_reference(pair.runs, pair.origins, model())
            error_a, error_b = found.total_error("A"), found.total_error("B")
            assert error_a is not None
            assert error_b is not None
            assert error_a < 1e-4
            assert error_b > 10 * error_a
            if pair.origins.flipped:
                assert found.agrees_with is Agreement.A
                assert found.choice == pair.origins.token_a
                assert found.margin is not None
                assert found.margin > 0
                return
            assert found.agrees_with is Agreement.BOTH
    pytest.skip("no decision flips on this machine")


def test_an_architecture_without_reference_says_so(tmp_path: Path) -> None:
    requests = handoff(0, 4)
    a = record(tmp_path / "a.h5", requests, max_active=1)
    b = record(tmp_path / "b.h5", requests, max_active=2)
    with opened(a, b) as pair:
        found = compare_with_reference(pair.runs, pair.origins, replace(model(), architecture="gemma"))
    assert found.agrees_with is Agreement.UNKNOWN
    assert "gemma" in found.unsupported
    assert found.logits == ()
