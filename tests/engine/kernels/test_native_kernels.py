from __future__ import annotations

from dataclasses import replace

import pytest

from engine.kernels.native import (
    UNKNOWN,
    Backend,
    NativeCall,
    Operation,
    apple_chip,
    boundaries,
    native_kernel,
)
from engine.kernels.native.metal_quantized import split_parts

QWEN_7B_DOWN = NativeCall(
    operation=Operation.QUANTIZED_MATMUL,
    backend=Backend.METAL,
    mlx_version="0.32.4",
    rows=1,
    input_size=18944,
    output_size=3584,
    architecture="applegpu_g13s",
    bits=4,
    group_size=64,
)
ATTENTION = NativeCall(
    operation=Operation.ATTENTION,
    backend=Backend.METAL,
    mlx_version="0.32.4",
    rows=1,
    architecture="applegpu_g15g",
    key_length=200,
    head_size=128,
    queries_per_kv_head=7,
)


@pytest.mark.parametrize(
    ("architecture", "size", "limit"),
    [
        ("applegpu_g13s", 2048, 14),
        ("applegpu_g14g", 4096, 10),
        ("applegpu_g14s", 4097, 6),
        ("applegpu_g14d", 2048, 32),
        ("applegpu_g16d", 8192, 12),
        ("applegpu_g15s", 2048, 13),
        ("applegpu_g16g", 4096, 15),
        ("applegpu_g17s", 2048, 33),
        ("applegpu_g12p", 2048, 18),
    ],
)
def test_the_vector_kernel_ends_where_the_chip_and_shape_say(architecture: str, size: int, limit: int) -> None:
    call = replace(QWEN_7B_DOWN, architecture=architecture, input_size=size, output_size=512)
    assert native_kernel(replace(call, rows=limit - 1)).label.startswith("qmv")
    assert native_kernel(replace(call, rows=limit)).label.startswith("qmm")


def test_one_model_has_different_limits_per_layer() -> None:
    m1 = replace(QWEN_7B_DOWN, architecture="applegpu_g13g")
    narrow = replace(m1, input_size=1536, output_size=2048)
    assert boundaries(m1, 13)[0] == 6
    assert boundaries(narrow, 15)[0] == 14


def test_a_prefill_of_124_rows_and_a_decode_of_4_take_different_kernels() -> None:
    assert native_kernel(replace(QWEN_7B_DOWN, rows=4)) != native_kernel(replace(QWEN_7B_DOWN, rows=124))


def test_the_wide_vector_kernel_changes_with_every_tile_size_from_generation_15_on() -> None:
    newer = replace(QWEN_7B_DOWN, architecture="applegpu_g15s")
    labels = [native_kernel(replace(newer, rows=rows)).label for rows in (1, 2, 5, 6, 10, 11, 12)]
    assert labels == [
        "qmv_fast",
        "qmv_wide-2",
        "qmv_wide-5",
        "qmv_wide-3",
        "qmv_wide-5",
        "qmv_wide-4",
        "qmv_wide-4",
    ]
    assert native_kernel(replace(QWEN_7B_DOWN, rows=5)).label == "qmv_fast"
    assert native_kernel(replace(QWEN_7B_DOWN, rows=5, mode="nvfp4")).label == "qmv_wide-5"


def test_split_k_changes_at_multiples_of_32_rows() -> None:
    call = replace(QWEN_7B_DOWN, input_size=4096, output_size=1024, group_size=64)
    changes = boundaries(call, 129)
    assert changes[0] == 10
    assert {33, 65} <= set(changes)
    assert split_parts(32, 4096, 1024, 64) == 16
    assert split_parts(33, 4096, 1024, 64) == 8
    assert split_parts(2000, 4096, 4096, 64) == 1


def test_four_verify_rows_of_a_seven_fold_grouped_model_stay_in_the_vector_kernel_and_five_leave_it() -> None:
    assert boundaries(ATTENTION, 12) == (5, 9)


def test_long_keys_switch_attention_to_two_passes_by_chip_size() -> None:
    assert native_kernel(replace(ATTENTION, key_length=4095)).label == "sdpa_vector"
    assert native_kernel(replace(ATTENTION, key_length=4096)).label.startswith("sdpa_vector_2pass")
    large = replace(ATTENTION, key_length=1024, architecture="applegpu_g15s")
    assert native_kernel(replace(large, key_length=1023)).label == "sdpa_vector"
    assert native_kernel(large).label.startswith("sdpa_vector_2pass")
    ungrouped = replace(ATTENTION, key_length=100_000, queries_per_kv_head=1)
    assert native_kernel(ungrouped).label == "sdpa_vector"


def test_cuda_edges_are_those_measured_on_a_gpu() -> None:
    cuda = replace(QWEN_7B_DOWN, backend=Backend.CUDA, architecture="sm_90")
    assert boundaries(cuda, 40) == (8,)
    assert boundaries(replace(cuda, operation=Operation.MATMUL), 40) == (2,)
    assert boundaries(replace(cuda, operation=Operation.ATTENTION), 40) == (4,)


@pytest.mark.parametrize("operation", list(Operation))
def test_nothing_changes_on_cpu(operation: Operation) -> None:
    cpu = replace(QWEN_7B_DOWN, backend=Backend.CPU, operation=operation)
    assert boundaries(cpu, 200) == ()
    assert native_kernel(cpu).known


@pytest.mark.parametrize(
    "call",
    [
        replace(QWEN_7B_DOWN, mlx_version="0.33.0"),
        replace(QWEN_7B_DOWN, mlx_version=""),
        replace(QWEN_7B_DOWN, architecture="radeon"),
        replace(QWEN_7B_DOWN, backend=Backend.CUDA, operation=Operation.GATHER_QMM),
        replace(QWEN_7B_DOWN, rows=0),
    ],
)
def test_what_was_not_read_is_unknown(call: NativeCall) -> None:
    assert native_kernel(call) == UNKNOWN


def test_an_architecture_string_is_read_or_refused() -> None:
    chip = apple_chip("applegpu_g14d")
    assert chip is not None
    assert (chip.generation, chip.size) == (14, "d")
    assert apple_chip("applegpu_gXXd") is None
