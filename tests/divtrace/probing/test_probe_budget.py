from __future__ import annotations

import threading
import time
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner

import divtrace.api.probe as api
from divtrace.commands.probe import command
from divtrace.probing import LinearShape, ProbeRequest, ProbeResult, run_probe
from divtrace.probing import budget as budgets
from divtrace.probing import run as runs
from divtrace.probing.budget import Budget
from divtrace.probing.cases import Case, Rows
from divtrace.probing.measure import measure
from divtrace.probing.run import gpu_order
from engine.kernels.native import Backend
from tests.divtrace.probing.planted import WIDTH, case_of, honest

SLOW_S = 0.2
ROWS = np.ones((16, WIDTH), np.float32)
COUNTS = (1, 2, 8)


def compiling() -> Case:
    """A kernel that takes long the first time it sees a number of rows."""
    calls: Counter[int] = Counter()

    def run(rows: Rows) -> np.ndarray:
        calls[len(rows)] += 1
        if calls[len(rows)] == 1:
            time.sleep(SLOW_S)
        return honest(rows)

    return case_of(run)


def test_compilation_on_a_gpu_is_not_charged_and_no_row_count_is_lost_to_it() -> None:
    budget = Budget(compiles=True)
    found = measure(compiling(), ROWS, COUNTS, SLOW_S, budget)
    assert found.row_counts == COUNTS
    assert budget.spent_s < SLOW_S
    assert max(found.time_s.values()) < SLOW_S


def test_on_a_cpu_all_time_counts() -> None:
    budget = Budget()
    found = measure(compiling(), ROWS, COUNTS, SLOW_S, budget)
    assert found.row_counts == (1,)
    assert budget.spent_s >= SLOW_S


def test_a_first_call_that_takes_long_is_announced_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "LONG_CALL_S", 0.01)
    heard, said = threading.Event(), []

    def listen(case: str) -> None:
        said.append(case)
        heard.set()

    def wait(rows: Rows) -> np.ndarray:
        assert heard.wait(30)
        return honest(rows)

    measure(case_of(wait), ROWS, (1, 2), 60.0, Budget(False, listen))
    assert said == ["planted 12 float32 (test)"]


def test_a_quick_first_call_is_not_announced_later_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "LONG_CALL_S", 1.0)
    said: list[str] = []
    measure(case_of(honest), ROWS, (1, 2), 60.0, Budget(True, said.append))
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join()
    assert said == []


def test_the_command_says_on_standard_error_that_a_kernel_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(request: ProbeRequest, progress: runs.Progress, on_long_call: budgets.OnLongCall) -> ProbeResult:
        on_long_call("matmul 8x8 float32 (mlx)")
        return run_probe(request, progress)

    monkeypatch.setattr(api, "run_probe", slow)
    answer = CliRunner().invoke(command, ["--operation", "softmax", "--rows", "1,2"])
    assert answer.stderr == "divtrace: compiling a kernel for matmul 8x8 float32 (mlx); its first call takes long.\n"
    assert "compiling" not in answer.stdout


def test_on_a_gpu_mlx_s_products_come_first_and_numpy_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "backend", lambda: Backend.CUDA)
    request = ProbeRequest(shapes=(LinearShape(64, 24),), row_counts=(1, 2), budget_s=120.0)
    found = [(each.operation, each.implementation) for each in run_probe(request).findings]
    assert found[:4] == [("quantized_matmul", "mlx"), *[("matmul", "mlx")] * 3]
    implementations = [implementation.split()[0] for _, implementation in found]
    assert list(dict.fromkeys(implementations)) == ["mlx", "invariant", "numpy"]
    assert implementations == sorted(implementations, key=["mlx", "invariant", "numpy"].index)


def test_the_gpu_s_order_keeps_every_case() -> None:
    cases = [case_of(honest), compiling()]
    assert gpu_order(cases) == cases


def test_a_shape_given_twice_is_probed_once_and_zero_bits_are_dense() -> None:
    result = api.probe(shapes=["64x24:4", "64x24", "64x24:0"], rows=[1, 2], operations=["quantized_matmul", "matmul"])
    shapes = [found.shape for found in result.findings if found.shape.startswith("64x24 ")]
    assert sorted(shapes) == ["64x24 float32", "64x24 q4/32"]


def test_what_loading_takes_is_taken_from_the_budget_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[float] = []

    def note(request: ProbeRequest, *_: object) -> ProbeResult:
        given.append(request.budget_s)
        return run_probe(ProbeRequest(shapes=(LinearShape(64, 24),), row_counts=(1,), operations=("softmax",)))

    monkeypatch.setattr(api, "run_probe", note)
    monkeypatch.setattr(api, "load_shared", lambda *_: time.sleep(SLOW_S))
    api.probe(model="some.gguf")
    api.probe(model="some.gguf", budget=3.0)
    assert 20.0 <= given[0] <= 54.0 - SLOW_S
    assert given[1] == 3.0
