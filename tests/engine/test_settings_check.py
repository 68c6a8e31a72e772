from __future__ import annotations

from typing import Any

import pytest

from engine.errors import SettingsError
from engine.settings import EngineSettings, parse_settings
from engine.workload import WorkloadSpec, parse_workload

SHAPES = {"16x12 float32": [[None, "gemv"]]}


def spec(settings: dict[str, Any], **arms: dict[str, Any]) -> WorkloadSpec:
    requests = [{"id": "a", "prompt_tokens": [1], "max_tokens": 1}]
    return parse_workload({"model": "m", "requests": requests, "settings": settings, "arms": arms}, "case.yaml")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"chunked_prefill": False, "long_prefill_threshold": 7},
            "long_prefill_threshold = 7 .* chunked_prefill is off",
        ),
        (
            {"chunked_prefill": False, "align_prefill_to_blocks": True},
            "align_prefill_to_blocks .* chunked_prefill is off",
        ),
        ({"kv": "contiguous", "prefix_cache": True}, "prefix_cache needs blocks, and kv is contiguous"),
        ({"kv": "contiguous", "kv_blocks": 9}, "kv_blocks = 9 counts blocks, and kv is contiguous"),
        ({"speculation": {"draft_model": "m"}}, "speculation.draft_model is given, .* 'none'"),
        ({"speculation": {"drafter": "self", "draft_model": "m"}}, "speculation.draft_model is given, .* 'self'"),
    ],
)
def test_settings_that_undo_each_other_are_refused_with_one_sentence(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=rf"^case\.yaml, arm 'one': {words}[^\n]*\.$"):
        spec({}, one=settings).arm_settings("one", {}, "case.yaml")


@pytest.mark.parametrize(
    "settings",
    [
        {"chunked_prefill": False},
        {"long_prefill_threshold": 7, "align_prefill_to_blocks": True},
        {"kv": "contiguous"},
        {"kv": "contiguous", "prefix_cache": False, "kv_blocks": None},
        {"prefix_cache": True, "kv_blocks": 9},
        {"speculation": {"drafter": "model", "draft_model": "m"}},
    ],
)
def test_settings_that_have_their_effect_pass(settings: dict[str, Any]) -> None:
    assert spec(settings).arm_settings("", {}, "case.yaml") == parse_settings(settings, "here")


def test_an_arm_that_inherits_a_setting_without_effect_is_told_so() -> None:
    both = spec({"kv_blocks": 64}, paged={}, control={"kv": "contiguous"})
    assert both.arm_settings("paged", {}, "case.yaml").kv_blocks == 64
    with pytest.raises(SettingsError, match="arm 'control': kv_blocks"):
        both.arm_settings("control", {}, "case.yaml")
    assert both.arm_settings("control", {"kv_blocks": None}, "case.yaml").kv_blocks is None


def test_settings_of_a_trace_are_taken_as_they_are() -> None:
    resolved = EngineSettings(kv="contiguous", prefix_cache=True).resolved()
    assert parse_settings(resolved, "trace").prefix_cache


@pytest.mark.parametrize("settings", [{"policy": "auto"}, {"site_policies": {"proj": "auto"}}])
def test_auto_needs_what_tuning_found_for_single_sites_too(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="policy auto needs what tuning found"):
        parse_settings(settings, "here")
    assert parse_settings({**settings, "tuned": SHAPES}, "here").tuned
