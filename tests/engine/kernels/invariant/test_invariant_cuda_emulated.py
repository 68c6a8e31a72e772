"""The CUDA kernels' arithmetic order on a processor: the device sources, compiled as C++ with emulated warps."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

import engine.kernels.invariant as invariant

EMULATION = Path(__file__).parent / "emulation"
DEVICE = Path(invariant.__file__).parent / "cuda_device"
COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.mark.skipif(COMPILER is None, reason="needs a C++20 compiler (g++ or clang++)")
@pytest.mark.parametrize("program", ["linears", "attention", "plain"])
def test_every_launch_gives_the_bits_of_a_row_alone_and_the_right_numbers(program: str, tmp_path: Path) -> None:
    assert COMPILER is not None
    binary = tmp_path / program
    source = EMULATION / f"{program}.cpp"
    flags = ["-O1", "-std=c++20", "-pthread", "-ffp-contract=off", "-I", str(EMULATION), "-I", str(DEVICE)]
    subprocess.run([COMPILER, *flags, str(source), "-o", str(binary)], check=True, capture_output=True, text=True)
    ran = subprocess.run([str(binary)], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stdout
    assert "WRONG" not in ran.stdout
    assert ran.stdout.count("right") >= 5
