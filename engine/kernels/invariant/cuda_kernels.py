"""Builds the CUDA kernels of `cuda_device/` through `mx.fast.cuda_kernel`. Must not know shapes or launches."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, cast

import mlx.core as mx

from engine.errors import EngineError

Kernel = Callable[..., list[mx.array]]
Template = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel: its name, files of device code, arrays in and out in the order of its call, and its body, one call.

    `shared_bytes` is the dynamic shared memory that the body asks for.
    """

    name: str
    files: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: str
    shared_bytes: int = 0


def available() -> bool:
    """True when MLX runs on CUDA here."""
    return bool(mx.cuda.is_available())


@cache
def header(names: tuple[str, ...]) -> str:
    """The device code of these files without its comments: MLX handles the whole text again at each call."""
    folder = files("engine.kernels.invariant") / "cuda_device"
    lines = (line for name in names for line in (folder / name).read_text().splitlines())
    code = (re.sub(r"//.*", "", line).strip() for line in lines)
    return "\n".join(line for line in code if line and line != "#pragma once")


@cache
def build(source: KernelSource) -> Kernel:
    """The kernel, compiled by MLX at its first call for each template.

    Raises:
        EngineError: no CUDA device.
    """
    if not available():
        raise EngineError("The invariant CUDA kernels need MLX on a CUDA device; install mlx[cuda13], or use the CPU.")
    kernel = mx.fast.cuda_kernel(
        name=source.name,
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        source=f"using namespace divtrace; {source.body}",
        header=header(source.files),
        shared_memory=source.shared_bytes,
    )
    return cast("Kernel", kernel)


@lru_cache(maxsize=4096)
def integers(*values: int) -> mx.array:
    """The same small array each time: making one costs a transfer, and shapes repeat from step to step."""
    array = mx.array(values, mx.int32)
    mx.eval(array)
    return array


@lru_cache(maxsize=64)
def number(value: float) -> mx.array:
    """One float32, kept like `integers`."""
    array = mx.array([value], mx.float32)
    mx.eval(array)
    return array


@cache
def nothing(dtype: mx.Dtype) -> mx.array:
    """An array for an argument that the kernel does not read."""
    array = mx.zeros((1,), dtype)
    mx.eval(array)
    return array
