"""What this machine is, as far as kernels depend on it. Must not know cases."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import mlx.core as mx
import numpy as np
from threadpoolctl import threadpool_info

from divtrace.probing.result import Machine
from engine.kernels.native import Backend


def backend() -> Backend:
    """Where MLX runs by default."""
    if mx.default_device() != mx.Device(mx.gpu):
        return Backend.CPU
    return Backend.METAL if mx.metal.is_available() else Backend.CUDA


def gpu_architecture() -> str:
    """MLX's architecture string, empty on CPU."""
    if backend() is Backend.CPU:
        return ""
    return str(mx.device_info().get("architecture", ""))


def mlx_version() -> str:
    """Version of the installed MLX."""
    return version("mlx")


def blas_threads() -> int:
    """Threads of numpy's BLAS as the process found it."""
    return max((pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"), default=1)


def this_machine() -> Machine:
    """The record that goes into a result."""
    return Machine(
        processor=_processor(),
        cores=os.cpu_count() or 1,
        backend=backend().value,
        architecture=gpu_architecture(),
        mlx_version=mlx_version(),
        numpy_version=np.__version__,
        blas=_blas(),
        numba_version=_version_of("numba"),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _blas() -> str:
    pools = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
    return ", ".join(
        f"{pool['internal_api']} {pool['version']} {pool.get('architecture', '')}".strip() for pool in pools
    )


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
