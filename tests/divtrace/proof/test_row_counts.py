"""A kernel of one name that rounds otherwise over more rows: no path differs, and its dependence on rows is shown."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

from divtrace.origin.records import OriginKind
from divtrace.proof.counterfactual import Counterfactuals
from divtrace.proof.prove import prove
from divtrace.proof.records import Causality, Method, Subject
from divtrace.proof.row_counts import row_count_candidates
from divtrace.trace.reader import open_trace
from divtrace.verdict.blame import ProofOptions, blame
from divtrace.verdict.records import Confidence, Nature, Verdict
from engine.kernels import blas, linear
from engine.kernels.policy import LinearPath
from engine.kernels.site import LinearSite
from tests.divtrace.proof.pairs import flipping_pair, handoff, model, opened, record

EDGE_ROWS = 8


def row_dependent(site: LinearSite, x: mx.array) -> mx.array:
    """As MLX on CUDA does it: vector kernel below 8 rows, matrix kernel of lower precision from there on."""
    return blas.gemm_half_operands(site, x) if x.shape[0] >= EDGE_ROWS else blas.gemv_rows(site, x)


def dependent_from_two_rows(site: LinearSite, x: mx.array) -> mx.array:
    """As a dense matmul on CUDA: every row count but one is another kernel."""
    return blas.gemm_half_operands(site, x) if x.shape[0] >= 2 else blas.gemv_rows(site, x)


@pytest.fixture(autouse=True)
def native_depends_on_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(linear.CPU_KERNELS, LinearPath.NATIVE, row_dependent)


@pytest.fixture
def traces(tmp_path: Path) -> tuple[Path, Path]:
    return flipping_pair(tmp_path, policy="native")


def test_no_path_differs_and_the_step_with_more_rows_is_a_candidate(traces: tuple[Path, Path]) -> None:
    with opened(*traces) as pair:
        assert pair.origins.candidates == ()
        assert pair.origins.origins[0].kind is OriginKind.SELECTOR_INPUT
        candidates = row_count_candidates(pair.runs, pair.origins)
        assert [(c.step_a, c.step_b) for c in candidates if c.is_origin] == [(1, 1)]
        origin = next(c for c in candidates if c.is_origin)
        assert {site.path_a for site in origin.sites} == {"native"}
        assert len(origin.sites) >= 14


def test_steps_behind_the_origin_count_too_where_they_shared_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(linear.CPU_KERNELS, LinearPath.NATIVE, dependent_from_two_rows)
    a = record(tmp_path / "a.h5", handoff(0, 10), max_active=1, policy="native")
    b = record(tmp_path / "b.h5", handoff(0, 10), max_active=2, policy="native")
    with opened(a, b) as pair:
        candidates = row_count_candidates(pair.runs, pair.origins)
        shared = [s.step for step in range(10) for s in pair.runs.b.segments_of_step(step) if s.request == 1]
        assert [c.step_b for c in candidates] == shared
        assert len(shared) == 4
        counterfactuals = Counterfactuals(pair.a, pair.b, pair.origins, candidates)
        found = prove(counterfactuals, Subject.ROW_COUNTS)
        assert found.causality is not Causality.NONE
        assert counterfactuals.neutral_trial(range(4)).same_logits
        assert not counterfactuals.neutral_trial((0,)).same_logits


def test_the_dependence_on_rows_is_the_cause_and_no_row_independent_kernel_is_accused(
    traces: tuple[Path, Path],
) -> None:
    with open_trace(traces[0]) as a, open_trace(traces[1]) as b:
        result = blame(a, b, proof=ProofOptions(model))
    assert (result.verdict, result.nature, result.confidence) == (
        Verdict.KERNEL_PATH,
        Nature.ROUNDING,
        Confidence.PROVEN,
    )
    assert "depend" in result.reason
    proof = result.proof
    assert proof is not None
    assert (proof.subject, proof.causality, proof.swap_agrees) == (Subject.ROW_COUNTS, Causality.ONE, True)
    assert [proof.candidates[i].step_b for i in proof.cause] == [1]
    assert proof.neutral_trials[0].same_logits is True
    assert {trial.method for trial in proof.trials} == {Method.ROWS}


def test_a_kernel_whose_rows_are_not_to_blame_is_cleared(
    traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Row-independent kernels that round as badly as the matrix kernel leave the runs as they were: no cause."""
    from divtrace.proof import counterfactual

    monkeypatch.setattr(counterfactual, "_row_independent_path", lambda site: site.path_a)
    with opened(*traces) as pair:
        counterfactuals = counterfactual.Counterfactuals(
            pair.a, pair.b, pair.origins, row_count_candidates(pair.runs, pair.origins)
        )
        assert prove(counterfactuals, Subject.ROW_COUNTS).causality is Causality.NONE
