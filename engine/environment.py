"""Facts of the machine and libraries that can change a bit of a result. Reads, never sets."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import mlx.core as mx
from threadpoolctl import threadpool_info

BLAS_FACTS = ("internal_api", "version", "num_threads", "architecture", "threading_layer")
NUMERIC_VARIABLES = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
    "OPENBLAS_L2_SIZE",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMBA_NUM_THREADS",
    "NUMBA_CPU_NAME",
    "MLX_ENABLE_TF32",
    "MLX_METAL_GPU_ARCH",
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_WORKSPACE_CONFIG",
)


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None when absent."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def processor_name() -> str:
    """The processor's marketing name where the system tells it, else its architecture."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123
            for line in lines:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe_environment() -> dict[str, Any]:
    """JSON-ready: versions, operating system, processor or GPU, BLAS with its kernels and threads, and variables."""
    device = "cpu" if mx.default_device() == mx.Device(mx.cpu) else "gpu"
    return {
        "versions": {
            name: package_version(name)
            for name in (
                "mlx",
                "mlx-cpu",
                "mlx-cuda-12",
                "mlx-cuda-13",
                "mlx-metal",
                "mlx-lm",
                "numpy",
                "numba",
                "h5py",
            )
        },
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "device": device,
        "device_info": _device_info(device),
        "blas": [
            {key: info.get(key) for key in BLAS_FACTS}
            for info in sorted(threadpool_info(), key=lambda info: (str(info["user_api"]), str(info["filepath"])))
            if info["user_api"] == "blas"
        ],
        "variables": {name: os.environ[name] for name in NUMERIC_VARIABLES if name in os.environ},
    }


def _device_info(device: str) -> dict[str, Any]:
    if device == "cpu":
        return {}
    info = mx.device_info() if hasattr(mx, "device_info") else {}
    return {str(key): value for key, value in info.items() if isinstance(value, str | int | float)}
