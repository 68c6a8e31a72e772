"""A tile size that does not hold on this machine's kernels is refused before anything is written."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.mark.parametrize(("tile_rows", "code"), [(8, 0), (7, 2)])
def test_recording_is_refused_where_the_tile_does_not_hold(
    workload: Path, tmp_path: Path, tile_rows: int, code: int
) -> None:
    if platform.machine() != "x86_64" or not np._core._multiarray_umath.__cpu_features__["AVX2"]:
        pytest.skip("this processor has no Haswell kernels")
    environment = {**os.environ, "OPENBLAS_CORETYPE": "Haswell", "DIVTRACE_CACHE": str(tmp_path / "cache")}
    command = ["record", str(workload), "-o", str(tmp_path / "runs"), "--arm", f"tiled:policy=tile:{tile_rows}"]
    done = subprocess.run(
        [sys.executable, "-m", "divtrace", *command],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == code, done.stderr
    if code:
        assert len(done.stderr.strip().splitlines()) == 1
        assert "tile:7" in done.stderr
        assert "tile:8 holds here" in done.stderr
        assert not (tmp_path / "runs" / "tiled.h5").exists()
