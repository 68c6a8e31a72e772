"""Controls come in their order, each is a line, and the first that fails ends the matter."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from divtrace.trace.reader import open_trace
from divtrace.verdict import controls
from divtrace.verdict.blame import ProofOptions, blame
from divtrace.verdict.records import BlameResult, Confidence, Verdict
from engine.kernels.policy import SiteOverride
from engine.model.packed import PackedModel
from tests.divtrace.proof.pairs import flipping_pair, handoff, model, opened, record


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return flipping_pair(tmp_path_factory.mktemp("pair"))


def blamed(traces: tuple[Path, Path], again: Path | None = None, **options: Any) -> BlameResult:
    proof = ProofOptions(model, **options) if options.pop("proven", True) else None
    with open_trace(traces[0]) as a, open_trace(traces[1]) as b:
        if again is None:
            return blame(a, b, proof=proof)
        with open_trace(again) as second:
            return blame(a, b, proof=proof, again=second)


def lines(result: BlameResult) -> list[tuple[str, bool | None]]:
    return [(control.name, control.holds) for control in result.controls]


def recorded_again(traces: tuple[Path, Path], path: Path, **changes: Any) -> Path:
    with opened(*traces) as pair:
        requests = handoff(pair.a.run.requests[0].prompt[0], 30)
    return record(path, requests, max_active=1, **changes)


def test_every_control_that_was_asked_is_a_line_in_order(traces: tuple[Path, Path], tmp_path: Path) -> None:
    again = recorded_again(traces, tmp_path / "again.h5")
    result = blamed(traces, again, check_recording=True)
    names = ["same prompts", "same weights", "A against A", "A against A", "B against B", "recording"]
    assert lines(result) == [(name, True) for name in names]
    assert "recorded twice" in result.controls[2].evidence
    assert "played back" in result.controls[3].evidence
    assert (result.verdict, result.confidence) == (Verdict.KERNEL_PATH, Confidence.PROVEN)


def test_a_reference_run_that_differs_from_itself_ends_it_before_any_re_run(
    traces: tuple[Path, Path], tmp_path: Path
) -> None:
    unsteady = recorded_again(
        traces, tmp_path / "again.h5", overrides=(SiteOverride(0, "lm_head", "gemm-f16-operands"),)
    )
    result = blamed(traces, unsteady)
    assert lines(result) == [("same prompts", True), ("same weights", True), ("A against A", False)]
    assert (result.verdict, result.origins, result.proof) == (Verdict.NOT_REPRODUCIBLE, None, None)
    assert result.next_time


def test_a_run_that_its_own_playback_does_not_repeat_is_not_blamed(
    traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that add in another order every time would do this."""
    forward = PackedModel._to_numpy
    monkeypatch.setattr(PackedModel, "_to_numpy", lambda self, logits, *rest: forward(self, logits * 1.001, *rest))
    result = blamed(traces)
    assert lines(result)[2:] == [("A against A", False)]
    assert result.verdict is Verdict.NOT_REPRODUCIBLE
    assert result.proof is not None
    assert result.proof.trials == ()


def test_on_another_machine_nothing_is_said_about_repeating(
    traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = PackedModel._to_numpy
    monkeypatch.setattr(PackedModel, "_to_numpy", lambda self, logits, *rest: forward(self, logits * 1.001, *rest))
    here = controls.describe_environment()
    monkeypatch.setattr(controls, "describe_environment", lambda: here | {"processor": "another"})
    result = blamed(traces)
    assert result.verdict is Verdict.NOT_DECIDABLE
    assert "processor" in result.reason
    assert "processor" in result.controls[-1].evidence
    assert result.exit_status == 2


def test_recording_that_changes_the_run_is_its_own_verdict(
    traces: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = PackedModel._to_numpy

    def heisenbug(self: PackedModel, logits: mx.array, kept: Any, tensors: Any) -> Any:
        return forward(self, logits if kept is not None else logits * 1.001, kept, tensors)

    monkeypatch.setattr(PackedModel, "_to_numpy", heisenbug)
    result = blamed(traces, check_recording=True)
    assert lines(result)[-1] == ("recording", False)
    assert (result.verdict, result.proof) == (Verdict.RECORDING_CHANGED_THE_RUN, None)


def test_other_weights_end_it_at_once(traces: tuple[Path, Path]) -> None:
    with open_trace(traces[0]) as a, open_trace(traces[1]) as b:
        b.header = replace(b.header, weights_hash="another")
        result = blame(a, b, proof=ProofOptions(model))
    assert lines(result) == [("same prompts", True), ("same weights", False)]
    assert result.verdict is Verdict.INPUTS_DIFFER


def test_without_proof_it_is_a_suspicion(traces: tuple[Path, Path]) -> None:
    result = blamed(traces, proven=False)
    assert (result.verdict, result.confidence, result.proof) == (Verdict.KERNEL_PATH, Confidence.SUSPECTED, None)
    assert any("--no-proof" in advice for advice in result.next_time)


def test_libraries_loaded_in_another_order_are_the_same_environment(traces: tuple[Path, Path]) -> None:
    with open_trace(traces[0]) as a:
        recorded = dict(a.header.environment)
        a.header = replace(a.header, environment=recorded | {"blas": list(reversed(recorded["blas"]))})
        assert controls.environment_differences(a) == ()
        a.header = replace(a.header, environment=recorded | {"python": "2.7"})
        assert controls.environment_differences(a) == ("python",)
