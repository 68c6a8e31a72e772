"""Tuning: what is measured, what follows from it, and what a policy file may hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import SettingsError
from engine.kernels.linear import LinearKernel
from engine.kernels.site import LinearSite
from engine.tune import PathRange, TunedPolicy, read_policy, tune, write_policy
from engine.tune.choose import choose_paths
from engine.tune.measure import available_paths, sites_by_shape, time_shape
from fixtures.tiny_models import tiny_model

timings = st.dictionaries(
    st.integers(1, 512),
    st.dictionaries(st.sampled_from(["gemv", "gemm-f32", "native"]), st.floats(0.01, 100.0), min_size=1),
    min_size=1,
    max_size=8,
)


def policy_of(ranges: tuple[PathRange, ...]) -> TunedPolicy:
    return TunedPolicy({"s": ranges})


def test_the_fastest_path_is_taken_from_the_row_count_where_it_becomes_so() -> None:
    measured = {
        1: {"gemv": 1.0, "gemm-f32": 3.0},
        2: {"gemv": 2.0, "gemm-f32": 3.0},
        4: {"gemv": 4.0, "gemm-f32": 3.0},
        8: {"gemv": 8.0, "gemm-f32": 3.5},
    }
    ranges = choose_paths(measured)
    assert ranges == (PathRange(2, "gemv"), PathRange(None, "gemm-f32"))
    policy = policy_of(ranges)
    assert [policy.path_of("s", rows) for rows in (1, 2, 3, 4, 8, 9999)] == ["gemv"] * 2 + ["gemm-f32"] * 4
    assert policy.path_of("another", 1) is None


def test_a_gain_within_the_noise_changes_no_path() -> None:
    measured = {rows: {"gemv": 1.0, "gemm-f32": 0.97} for rows in (2, 4)}
    assert choose_paths({1: {"gemv": 1.0, "gemm-f32": 2.0}, **measured}) == (PathRange(None, "gemv"),)
    assert choose_paths({1: {"gemv": 1.0, "gemm-f32": 2.0}, **measured}, least_gain=0.01) == (
        PathRange(1, "gemv"),
        PathRange(None, "gemm-f32"),
    )


def test_a_hole_in_the_table_stays_a_hole() -> None:
    measured = {1: {"a": 1.0, "b": 2.0}, 2: {"a": 2.0, "b": 1.0}, 3: {"a": 1.0, "b": 2.0}}
    assert choose_paths(measured) == (PathRange(1, "a"), PathRange(2, "b"), PathRange(None, "a"))


def test_nothing_measured_is_nothing_to_choose_from() -> None:
    for empty in ({}, {1: {}}):
        with pytest.raises(ValueError, match="where one was measured"):
            choose_paths(empty)


@given(timings)
def test_every_row_count_gets_a_path_that_was_measured_and_is_not_beaten_by_more_than_the_gain(
    measured: dict[int, dict[str, float]],
) -> None:
    policy = policy_of(choose_paths(measured))
    for rows, times in measured.items():
        path = policy.path_of("s", rows)
        assert path in times
        assert min(times.values()) > 0.95 * times[path] or times[path] == min(times.values())
    assert policy.path_of("s", 10**6) == policy.path_of("s", max(measured))


def test_sites_of_one_shape_and_storage_are_tuned_together() -> None:
    dense = [nn.Linear(64, 32, bias=False) for _ in range(3)]
    packed = nn.QuantizedLinear(64, 32, bias=False, group_size=32, bits=4)
    leaves = [*dense, nn.Linear(32, 64, bias=False), packed]
    sites = [LinearSite(f"s{index}", leaf, leaf) for index, leaf in enumerate(leaves)]
    grouped = {shape: [site.name for site in same] for shape, same in sites_by_shape(sites).items()}
    assert grouped == {
        "64x32 float32": ["s0", "s1", "s2"],
        "32x64 float32": ["s3"],
        "64x32 q4/32": ["s4"],
    }


def test_every_path_that_runs_here_is_compared() -> None:
    paths = available_paths()
    assert {"native", "gemv", "gemm-f32", "gemm-f16-operands"} <= set(paths)


def test_every_kernel_meets_every_site_at_every_row_count() -> None:
    leaves = [nn.Linear(16, 8, bias=False) for _ in range(2)]
    sites = [LinearSite(f"s{index}", leaf, leaf) for index, leaf in enumerate(leaves)]
    met: set[tuple[str, str, tuple[int, ...]]] = set()

    def kernel_named(name: str) -> LinearKernel:
        def kernel(site: LinearSite, x: mx.array) -> mx.array:
            met.add((name, site.name, tuple(x.shape)))
            return site.native(x)

        return kernel

    timed = time_shape(sites, (1, 3), {name: kernel_named(name) for name in "ab"}, spent_s=0.0)
    assert (timed.shape, timed.sites, set(timed.milliseconds)) == ("16x8 float32", 2, {1, 3})
    assert all(set(times) == {"a", "b"} for times in timed.milliseconds.values())
    assert met == {(name, site, (rows, 16)) for name in "ab" for site in ("s0", "s1") for rows in (1, 3)}


def test_a_model_is_tuned_shape_by_shape_and_given_back_as_it_was(tmp_path: Path) -> None:
    loaded = tiny_model(quantized=True)
    before = {path: type(module) for path, module in loaded.model.named_modules()}
    seen: list[str] = []
    result = tune(loaded, (1, 8, 40), spent_s=0.0, on_shape=lambda timed: seen.append(timed.shape))
    assert {path: type(module) for path, module in loaded.model.named_modules()} == before
    assert set(result.policy.shapes) == set(seen)
    assert "64x128 q4/32" in seen
    head = next(timed for timed in result.timings if timed.shape == "64x256 q4/32")
    assert sorted(head.milliseconds) == [1, 8], "no prompt's rows reach the output projection"
    written = tmp_path / "policy.json"
    write_policy(result, written)
    assert read_policy(written) == result.policy
    content = json.loads(written.read_text())
    assert content["environment"]["versions"]["numpy"]
    assert content["timings"]["64x128 q4/32"]["8"]["gemv"] > 0


def test_row_counts_must_make_sense() -> None:
    for counts in ((), (0, 1)):
        with pytest.raises(SettingsError, match="row counts of 1 or more"):
            tune(tiny_model(), counts)
    with pytest.raises(SettingsError, match="path 'fast' cannot run here"):
        tune(tiny_model(), (1,), paths=["fast"])


GOOD: dict[str, Any] = {"version": 1, "shapes": {"64x32 float32": [[2, "gemv"], [None, "gemm-f32"]]}}


def test_a_policy_file_needs_no_more_than_its_shapes(tmp_path: Path) -> None:
    written = tmp_path / "policy.json"
    written.write_text(json.dumps(GOOD))
    assert read_policy(written).path_of("64x32 float32", 3) == "gemm-f32"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "holds no kernel policy"),
        ('{"version": 2, "shapes": {}}', "version"),
        (json.dumps(GOOD | {"extra": 1}), "extra is not a known field"),
        (json.dumps(GOOD | {"shapes": {"s": []}}), "shapes.s"),
        (json.dumps(GOOD | {"shapes": {"s": [[None, "fastest"]]}}), "fastest"),
        (json.dumps(GOOD | {"shapes": {"s": [[0, "gemv"], [None, "gemv"]]}}), "shapes.s.0"),
        (json.dumps(GOOD | {"shapes": {"s": [[4, "gemv"]]}}), "must rise and end with null"),
        (json.dumps(GOOD | {"shapes": {"s": [[4, "gemv"], [4, "native"], [None, "gemv"]]}}), "must rise"),
        (json.dumps(GOOD | {"shapes": {"s": [[None, "gemv"], [None, "native"]]}}), "must rise"),
        (json.dumps(GOOD | {"shapes": {"s": ["gemv"]}}), "shapes.s.0"),
    ],
)
def test_a_file_that_is_no_policy_is_one_sentence(tmp_path: Path, content: str, message: str) -> None:
    written = tmp_path / "policy.json"
    written.write_text(content)
    with pytest.raises(SettingsError, match=message) as caught:
        read_policy(written)
    assert "\n" not in str(caught.value)
    assert str(written) in str(caught.value)


def test_files_that_cannot_be_read_or_written_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        read_policy(tmp_path / "missing.json")
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not JSON"):
        read_policy(binary)
    result = tune(tiny_model(layers=1), (1,), spent_s=0.0)
    with pytest.raises(SettingsError, match="cannot be written"):
        write_policy(result, tmp_path / "no" / "folder.json")
