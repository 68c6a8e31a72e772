"""A run in which no token was possible: its trace is sound, diff sees it, and blame names the value and its place."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import pytest

from divtrace.divergence.compare import diff_traces
from divtrace.divergence.records import Outcome
from divtrace.origin.records import SiteClass
from divtrace.recorder.step_flags import StepFlag
from divtrace.render.blame_document import blame_document
from divtrace.render.diff import diff_sentence
from divtrace.render.explain import explanation
from divtrace.render.sentence import blame_sentence
from divtrace.replay.replay import Replayer
from divtrace.replay.watchers import DecisionWatcher, RowKeeper
from divtrace.report.story import tell
from divtrace.trace.check import check_trace
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from divtrace.verdict.blame import ProofOptions, blame
from divtrace.verdict.records import BlameResult, Confidence, Nature, Verdict
from engine.request import Request
from tests.faults.case import Arm, record
from tests.faults.cases_paths import settings
from tests.faults.kernels import OVERFLOWING, fault_kernels
from tests.faults.paths import PathSwitch
from tests.faults.workloads import VICTIM, model, prompt, victim

SITE = "model.layers.0.self_attn.v_proj"


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    with fault_kernels():
        yield


def arms(level: Level = Level.KV) -> tuple[Arm, Arm]:
    """Run B takes a kernel that makes NaN in the first chunk of the prompt; its logits are NaN two steps later."""
    plain = Arm(model("llama-2"), settings(token_budget=16), (victim(0, 40, 8),), level=level)
    return plain, replace(plain, fault=lambda: PathSwitch(VICTIM, 3, SITE, OVERFLOWING))


def recorded(folder: Path, pair: tuple[Arm, Arm]) -> tuple[Path, Path]:
    paths = folder / "a.h5", folder / "b.h5"
    for arm, path in zip(pair, paths, strict=True):
        assert record(arm, path).error == ""
    return paths


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return recorded(tmp_path_factory.mktemp("pair"), arms())


@pytest.fixture(scope="module")
def result(pair: tuple[Path, Path]) -> BlameResult:
    with open_trace(pair[0]) as a, open_trace(pair[1]) as b:
        return blame(a, b, proof=ProofOptions(lambda: model("llama-2")))


def test_the_trace_of_a_failed_request_is_sound(pair: tuple[Path, Path]) -> None:
    with open_trace(pair[1]) as trace:
        assert check_trace(trace) == []
        assert trace.clean_end
        flags = [StepFlag(int(flag)) for flag in trace.column("steps", "flags")]
        reasons = [trace.string(int(reason)) for reason in trace.column("completions", "reason_string")]
        events = [trace.string(int(kind)) for kind in trace.column("events", "kind_string")]
    assert reasons == ["error"]
    assert events == ["admitted", "failed"]
    assert flags[0] == StepFlag.KV_NOT_FINITE
    assert flags[2] == StepFlag.KV_NOT_FINITE | StepFlag.LOGITS_NOT_FINITE


def test_an_error_without_its_decision_is_a_finding(pair: tuple[Path, Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.h5"
    damaged.write_bytes(pair[1].read_bytes())
    with h5py.File(damaged, "r+") as file:
        file["sampled/position"][0] += 1
    with open_trace(damaged) as trace:
        found = [str(finding) for finding in check_trace(trace)]
    assert any("no impossible decision stands behind its last token" in finding for finding in found)


def test_diff_sees_that_one_run_failed(pair: tuple[Path, Path]) -> None:
    with open_trace(pair[0]) as a, open_trace(pair[1]) as b:
        found = diff_traces(a, b)
    assert (found.outcome, found.exit_status) == (Outcome.TOKENS, 1)
    assert "8 tokens in A (length in step 9) and 0 tokens in B (error in step 2)" in diff_sentence(found)


def test_blame_names_the_kernel_the_value_and_its_place(result: BlameResult) -> None:
    assert (result.verdict, result.confidence, result.nature) == (
        Verdict.KERNEL_PATH,
        Confidence.PROVEN,
        Nature.BUG,
    )
    assert "in step 0 run B made NaN or Inf in the values of layer 0, position 0, which is no rounding" in result.reason
    assert result.origins is not None
    origin = result.origins.origins[0]
    assert (origin.step_b, origin.layer, origin.tensor, origin.not_finite) == (0, 0, "value", ("B",))
    assert origin.site_classes == (SiteClass.QKV,)
    assert result.origins.failed == ("B",)
    assert "position 40: the logit of token 0 is NaN" in result.origins.failure_b


def test_every_rendering_says_that_a_run_failed(result: BlameResult) -> None:
    assert result.origins is not None
    assert blame_sentence(result.origins).startswith(
        "request victim ends with an error at position 40 (output token 0) in B, where A commits"
    )
    assert any(step.claim == "No token was possible at position 40 of victim" for step in explanation(result))
    assert tell(result).headline.startswith("Request victim failed at output token 0 in run B")
    json.dumps(blame_document(result), allow_nan=False)


def test_it_is_found_whichever_run_comes_first(pair: tuple[Path, Path]) -> None:
    with open_trace(pair[1]) as a, open_trace(pair[0]) as b:
        found = blame(a, b, proof=ProofOptions(lambda: model("llama-2")))
    assert (found.verdict, found.confidence) == (Verdict.KERNEL_PATH, Confidence.PROVEN)
    assert "in step 0 run A made NaN or Inf in the values of layer 0, position 0" in found.reason


@pytest.mark.parametrize("level", [Level.TOKENS, Level.LOGITS])
def test_a_trace_without_rows_says_what_to_record(tmp_path: Path, level: Level) -> None:
    paths = recorded(tmp_path, arms(level))
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        assert diff_traces(a, b).exit_status == 1
        found = blame(a, b)
    assert found.verdict is Verdict.NOT_DECIDABLE
    assert any("--level kv" in advice for advice in found.next_time)


def test_a_playback_from_the_middle_knows_that_a_neighbour_had_failed(tmp_path: Path) -> None:
    """Its K/V must be gone, and must not be found again: the twin of its prompt was computed anew."""
    sick = Request("sick", prompt(0, 20, 5), 30, ignore_eos=True)
    twin = Request("twin", sick.prompt, 4, ignore_eos=True)
    plain = Arm(
        model("llama-2"),
        settings(prefix_cache=True, max_active=2, kv_blocks=6),
        (victim(0, 20, 20), sick, twin),
        fault=lambda: PathSwitch("sick", 3, SITE, OVERFLOWING),
    )
    path = tmp_path / "run.h5"
    record(plain, path)
    with open_trace(path) as trace:
        replayer = Replayer(trace, model("llama-2"))
        whole, part, keeper = (DecisionWatcher("twin", 0, True), DecisionWatcher("twin", 0, True), RowKeeper())
        steps = replayer.watch((whole, keeper))
        failed = next(step for step, pinned in enumerate(replayer.run.steps) if pinned.failed)
        known = {step: rows for step, rows in keeper.steps.items() if step < failed}
        assert replayer.watch((part,), known=known) == steps - len(known)
    assert len(part.seen) == 4
    assert {at: seen.logits_hash for at, seen in part.seen.items()} == {
        at: seen.logits_hash for at, seen in whole.seen.items()
    }
