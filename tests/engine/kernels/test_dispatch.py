"""The dispatcher remembers what the policy said, and forgets it when the policy could say something else."""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from engine.kernels.dispatch import Dispatcher
from engine.kernels.policy import KernelPolicy, SiteOverride, parse_linear_rule
from engine.kernels.site import LinearSite


def site(name: str = "proj") -> LinearSite:
    leaf = nn.Linear(8, 4, bias=False)
    return LinearSite(name, leaf, leaf)


def rows(count: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.linspace(-1, 1, count * 8, dtype=np.float32).reshape(count, 1, 8)).astype(dtype)


def paths(dispatcher: Dispatcher, proj: LinearSite, counts: list[int]) -> list[str]:
    """The path of each forward, one forward a row count."""
    found = []
    for step, count in enumerate(counts):
        dispatcher.begin_step(step, count, None)
        dispatcher.linear(proj, rows(count))
        found += [choice.path for choice in dispatcher.plan()]
    return found


def test_each_row_count_keeps_its_own_path_however_often_they_alternate() -> None:
    dispatcher = Dispatcher(KernelPolicy(parse_linear_rule("threshold:4")))
    found = paths(dispatcher, site(), [1, 8, 4, 5, 1, 8])
    assert found == ["gemv", "gemm-f16-operands", "gemv", "gemm-f16-operands", "gemv", "gemm-f16-operands"]


def test_an_override_decides_its_step_and_no_other() -> None:
    policy = KernelPolicy(parse_linear_rule("gemv"), overrides=(SiteOverride(2, "proj", "gemm-f32"),))
    assert paths(Dispatcher(policy), site(), [3, 3, 3, 3]) == ["gemv", "gemv", "gemm-f32", "gemv"]


def test_an_attention_override_decides_its_step_and_no_other() -> None:
    dispatcher = Dispatcher(KernelPolicy(overrides=(SiteOverride(1, "attn", "row"),)))
    found = []
    for step in range(3):
        dispatcher.begin_step(step, 2, None)
        found.append(dispatcher.attention("attn", 4, 16, mx.float32))
    assert found == ["segment", "row", "segment"]


def test_a_new_policy_is_asked_again() -> None:
    dispatcher, proj = Dispatcher(KernelPolicy(parse_linear_rule("gemv"))), site()
    assert paths(dispatcher, proj, [3, 3]) == ["gemv", "gemv"]
    dispatcher.policy = KernelPolicy(parse_linear_rule("native"))
    assert paths(dispatcher, proj, [3]) == ["native"]


def test_a_site_is_called_head_once_it_is_known_as_one() -> None:
    dispatcher, proj = Dispatcher(KernelPolicy()), site()
    dispatcher.begin_step(0, 3, None)
    dispatcher.linear(proj, rows(3))
    assert dispatcher.plan()[0].operation == "linear"
    dispatcher.head_site = "proj"
    dispatcher.begin_step(1, 3, mx.array([2, 0]))
    out = dispatcher.linear(proj, rows(3))
    choice = dispatcher.plan()[0]
    assert (choice.operation, choice.rows, out.shape) == ("head", 2, (2, 1, 4))


def test_a_choice_names_the_dtype_that_it_saw() -> None:
    dispatcher, proj = Dispatcher(KernelPolicy()), site()
    seen = []
    for dtype in (mx.float32, mx.float16, mx.float32):
        dispatcher.begin_step(0, 2, None)
        dispatcher.linear(proj, rows(2, dtype))
        seen.append(dispatcher.plan()[0].dtype)
    assert seen == ["float32", "float16", "float32"]
