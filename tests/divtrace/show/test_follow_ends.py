"""`show --follow` ends when the writer does, however that was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.divtrace.trace.builders import example_run


@pytest.mark.parametrize(("end", "said"), [(True, "complete, 4 steps"), (False, "ended early at step 4")])
def test_following_a_run_that_is_over_ends(tmp_path: Path, end: bool, said: str) -> None:
    path = example_run().write(tmp_path / "run.h5", end=end)
    command = [sys.executable, "-m", "divtrace", "show", str(path), "--follow"]
    followed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.rstrip().endswith(said)
