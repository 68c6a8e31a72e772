"""`tile:T` runs only where a row's place in T rows does not show; this processor's OpenBLAS has both cases."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from engine.errors import SettingsError
from engine.kernels import tile_verdicts, tiles
from engine.kernels.policy import KernelPolicy, LinearRule, parse_linear_rule
from engine.kernels.site import FloatArray, LinearSite
from engine.kernels.tile_verdicts import TileVerdicts, require_tiles
from engine.kernels.tiles import tile_hides_the_index

TILE_RULE = KernelPolicy(parse_linear_rule("tile:4"))
MEASURE = """
import json, sys
import mlx.core as mx, mlx.nn as nn
from engine.kernels.site import LinearSite
from engine.kernels.tiles import tile_hides_the_index
mx.random.seed(0)
leaf = nn.Linear(96, 64, bias=False)
mx.eval(leaf.parameters())
site = LinearSite("proj", leaf, leaf)
print(json.dumps([size for size in range(2, 18) if tile_hides_the_index(site, size)]))
"""


def site(name: str = "proj", outputs: int = 12) -> LinearSite:
    mx.random.seed(0)
    leaf = nn.Linear(16, outputs, bias=False)
    mx.eval(leaf.parameters())
    return LinearSite(name, leaf, leaf)


def needs_kernels(core_type: str) -> None:
    feature = "AVX512F" if core_type == "SkylakeX" else "AVX2"
    if platform.machine() != "x86_64" or not np._core._multiarray_umath.__cpu_features__[feature]:
        pytest.skip(f"this processor has no {core_type} kernels")


def sizes_that_hold(core_type: str, threads: int) -> list[int]:
    needs_kernels(core_type)
    environment = {**os.environ, "OPENBLAS_CORETYPE": core_type, "OPENBLAS_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, "-c", MEASURE], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    return [int(size) for size in json.loads(done.stdout)]


@pytest.mark.parametrize("threads", [1, 2])
def test_avx2_kernels_hide_the_index_in_eight_rows_and_not_in_seven(threads: int) -> None:
    assert sizes_that_hold("Haswell", threads) == [2, 3, 4, 8]


def test_avx512_kernels_hide_the_index_in_every_size() -> None:
    assert sizes_that_hold("SkylakeX", 1) == list(range(2, 18))


def _planted(monkeypatch: pytest.MonkeyPatch, disturb: str) -> None:
    """A tile kernel that pads as the real one does, and is row-dependent in one way."""

    def kernel(where: LinearSite, x: mx.array) -> mx.array:
        rows: FloatArray = np.array(x)
        tile = np.zeros((4, rows.shape[1]), np.float32)
        tile[: len(rows)] = rows
        out = np.stack([where.dense_f32 @ row for row in tile])
        if disturb == "index":
            out[3] += 1e-6
        elif disturb == "fill" and (tile[-1] == 0).all():
            out[:] += 1e-6
        elif disturb == "neighbours" and tile[0].tobytes() != tile[1].tobytes():
            out[:] += np.float32(1e-6) * np.sign(tile[0, 0])
        return mx.array(out[: len(rows)])

    monkeypatch.setattr(tiles, "linear_kernel", lambda _path: kernel)


@pytest.mark.parametrize(("disturb", "holds"), [("", True), ("index", False), ("fill", False), ("neighbours", False)])
def test_any_dependence_of_a_row_on_its_tile_is_found(
    monkeypatch: pytest.MonkeyPatch, disturb: str, holds: bool
) -> None:
    _planted(monkeypatch, disturb)
    assert tile_hides_the_index(site(), 4) is holds


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Verdicts go to a folder of their own; each real check is noted. Sizes above 8 do not hold."""
    checks: list[str] = []

    def check(where: LinearSite, tile_rows: int) -> bool:
        checks.append(f"{tile_rows} {where.shape_name}")
        return tile_rows <= 8

    monkeypatch.setenv("DIVTRACE_CACHE", str(tmp_path))
    monkeypatch.setattr(tile_verdicts, "tile_hides_the_index", check)
    return checks


def test_a_shape_is_checked_once_whatever_sites_have_it_and_never_again(counted: list[str]) -> None:
    sites = [site("a"), site("b"), site("wide", outputs=24)]
    for _ in range(2):
        require_tiles(TILE_RULE, sites)
    assert counted == ["4 16x12 float32", "4 16x24 float32"]


def test_only_sites_that_run_in_tiles_are_checked(counted: list[str]) -> None:
    policy = KernelPolicy(parse_linear_rule("gemv"), sites={"wide": LinearRule("tile", 2)})
    require_tiles(policy, [site("a"), site("wide", outputs=24)])
    require_tiles(KernelPolicy(), [site("a")])
    assert counted == ["2 16x24 float32"]


def test_a_tile_that_does_not_hold_is_refused_with_the_shape_and_a_size_that_does(counted: list[str]) -> None:
    with pytest.raises(SettingsError, match=r"tile:9: .* place for weights 16x12 float32 .*; tile:8 holds here"):
        require_tiles(KernelPolicy(parse_linear_rule("tile:9")), [site()])
    assert counted == ["9 16x12 float32", "8 16x12 float32"]


@pytest.mark.parametrize("content", ["", "[]", '{"version": 1, "machines": {"m": 3}}', '{"version": 9}', "\x00"])
def test_a_damaged_file_of_verdicts_is_no_verdict(counted: list[str], tmp_path: Path, content: str) -> None:
    (tmp_path / "tiles.json").write_text(content)
    require_tiles(TILE_RULE, [site()])
    require_tiles(TILE_RULE, [site()])
    assert counted == ["4 16x12 float32"]


def test_a_verdict_of_another_machine_does_not_count(counted: list[str], tmp_path: Path) -> None:
    for machine in ("one", "other"):
        verdicts = TileVerdicts(tmp_path / "tiles.json", machine)
        assert verdicts.holds(site(), 4)
        verdicts.save()
    assert len(counted) == 2
    assert set(json.loads((tmp_path / "tiles.json").read_text())["machines"]) == {"one", "other"}


def test_a_cache_that_cannot_be_written_only_costs_time(
    counted: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DIVTRACE_CACHE", str(tmp_path / "file" / "below"))
    require_tiles(TILE_RULE, [site()])
    assert counted == ["4 16x12 float32"]
