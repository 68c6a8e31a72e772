"""Names the kernels that MLX launches at row counts on both sides of each boundary: run it under Nsight Compute.

    ncu --print-summary per-kernel --metrics gpu__time_duration.sum python -m engine.bench.cuda.kernel_names

Each case is marked by a tiny `arange` of a size that no other case has, so that the listing can be told apart; the
label of `engine/kernels/native` is printed beside it.
"""

from __future__ import annotations

import mlx.core as mx

from engine.environment import package_version
from engine.kernels.native import Backend, NativeCall, Operation, native_kernel

ROWS = (1, 2, 7, 8, 9, 16, 64)
SIZES = ((576, 1536), (3584, 3584))


def main() -> None:
    """Launch every case once, after one warm-up."""
    mx.random.seed(0)
    for input_size, output_size in SIZES:
        weight = mx.random.normal((output_size, input_size)).astype(mx.float16)
        packed = mx.quantize(weight, group_size=64, bits=4)
        mx.eval(weight, *packed)
        for rows in ROWS:
            x = mx.random.normal((rows, input_size)).astype(mx.float16)
            mx.eval(x)
            mx.eval(mx.quantized_matmul(x, *packed, group_size=64, bits=4))
            mx.synchronize()
            _announce("quantized_matmul", rows, input_size, output_size, bits=4, group_size=64)
            mx.eval(x @ weight.T)
            mx.synchronize()
            _announce("matmul", rows, input_size, output_size, bits=0, group_size=0)


def _announce(operation: str, rows: int, input_size: int, output_size: int, bits: int, group_size: int) -> None:
    call = NativeCall(
        operation=Operation(operation),
        backend=Backend.CUDA,
        mlx_version=package_version("mlx") or "",
        rows=rows,
        input_size=input_size,
        output_size=output_size,
        dtype="float16",
        bits=bits,
        group_size=group_size,
    )
    label = native_kernel(call).label
    print(f"case {operation} rows={rows} K={input_size} N={output_size}: expected {label}", flush=True)


if __name__ == "__main__":
    main()
