"""One number at an address: loads and stores that compiled loops need and numba lacks. Must not know vectors."""

# numba reads the argument names of an intrinsic and hands their values to `generate`.
# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from llvmlite import ir  # type: ignore[import-untyped, unused-ignore]
from numba.core import types
from numba.extending import intrinsic

from engine.kernels.invariant.vectors import F32, I32, I64, load, store

I16 = ir.IntType(16)


@intrinsic
def load_f16(typing: Any, address: Any) -> Any:
    """The f16 at `address` as f32; exact."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.fpext(load(builder, arguments[0], ir.HalfType(), 2), F32)

    return types.float32(types.intp), generate


@intrinsic
def load_bf16(typing: Any, address: Any) -> Any:
    """The bf16 at `address` as f32; exact."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        bits = builder.zext(load(builder, arguments[0], I16, 2), I32)
        return builder.bitcast(builder.shl(bits, I32(16)), F32)

    return types.float32(types.intp), generate


@intrinsic
def load_f32(typing: Any, address: Any) -> Any:
    """The f32 at `address`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return load(builder, arguments[0], F32, 4)

    return types.float32(types.intp), generate


@intrinsic
def store_f32(typing: Any, value: Any, address: Any) -> Any:
    """Write an f32 at `address`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        store(builder, arguments[0], arguments[1])
        return context.get_dummy_value()

    return types.void(types.float32, types.intp), generate


@intrinsic
def load_i32(typing: Any, address: Any) -> Any:
    """The int32 at `address`, as int64."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return builder.sext(load(builder, arguments[0], I32, 4), I64)

    return types.int64(types.intp), generate


@intrinsic
def load_i64(typing: Any, address: Any) -> Any:
    """The int64 at `address`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        return load(builder, arguments[0], I64, 8)

    return types.int64(types.intp), generate


@intrinsic
def store_i32(typing: Any, value: Any, address: Any) -> Any:
    """Write the low half of an int64 at `address`."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> Any:
        store(builder, builder.trunc(arguments[0], I32), arguments[1])
        return context.get_dummy_value()

    return types.void(types.int64, types.intp), generate
