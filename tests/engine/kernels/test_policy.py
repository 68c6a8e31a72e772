"""Rules from text, and paths from rules."""

from __future__ import annotations

import pytest

from engine.errors import SettingsError
from engine.kernels.policy import KernelPolicy, LinearRule, SiteOverride, parse_linear_rule


@pytest.mark.parametrize("text", ["native", "gemv", "gemm", "invariant", "threshold:0", "threshold:4", "tile:8"])
def test_a_rule_reads_back_as_it_was_written(text: str) -> None:
    assert str(parse_linear_rule(text)) == text


@pytest.mark.parametrize("text", ["threshold:-1", "threshold", "threshold:x", "tile:1", "gemm:3", "fast", ""])
def test_a_rule_that_makes_no_sense_is_refused_with_what_would(text: str) -> None:
    with pytest.raises(SettingsError, match="use native"):
        parse_linear_rule(text)


def test_a_threshold_takes_gemv_up_to_its_limit() -> None:
    policy = KernelPolicy(linear=LinearRule("threshold", 4))
    assert policy.linear_path(0, "x", 4) == ("gemv", "threshold:4")
    assert policy.linear_path(0, "x", 5) == ("gemm-f16-operands", "threshold:4")


def test_an_override_changes_one_step_and_one_site() -> None:
    policy = KernelPolicy(linear=LinearRule("gemv")).with_overrides((SiteOverride(3, "a", "gemm-f32"),))
    assert policy.linear_path(3, "a", 1) == ("gemm-f32", "override")
    assert policy.linear_path(2, "a", 1)[0] == policy.linear_path(3, "b", 1)[0] == "gemv"


def test_an_override_with_a_star_covers_a_subtree() -> None:
    override = SiteOverride(3, "model.layers.1.*", "gemv")
    assert override.matches(3, "model.layers.1.mlp.up_proj")
    assert not override.matches(3, "model.layers.11.mlp.up_proj")
