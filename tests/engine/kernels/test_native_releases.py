from __future__ import annotations

from dataclasses import replace

import pytest

from engine.kernels.native import UNKNOWN, Backend, NativeCall, Operation, boundaries, native_kernel

RELEASES = ("0.31.0", "0.31.1", "0.31.2", "0.32.0", "0.32.1", "0.32.2", "0.32.3", "0.32.4")
FROM_0_32_1 = RELEASES[4:]

LINEAR = NativeCall(
    operation=Operation.QUANTIZED_MATMUL,
    backend=Backend.METAL,
    mlx_version="0.32.4",
    rows=1,
    input_size=8192,
    output_size=4096,
    dtype="float16",
    architecture="applegpu_g14g",
    bits=4,
    group_size=64,
)
DENSE = replace(LINEAR, operation=Operation.MATMUL, bits=0, group_size=0)
ATTENTION = NativeCall(
    operation=Operation.ATTENTION,
    backend=Backend.METAL,
    mlx_version="0.32.4",
    rows=1,
    architecture="applegpu_g14g",
    key_length=512,
    head_size=128,
    queries_per_kv_head=4,
)


def _label(call: NativeCall, **changes: object) -> str:
    return native_kernel(replace(call, **changes)).label  # type: ignore[arg-type]


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("architecture", "widest", "before_0_32_1", "from_0_32_1"),
    [
        ("applegpu_g12p", 2048, 18, 18),
        ("applegpu_g13g", 2048, 14, 14),
        ("applegpu_g14s", 4096, 10, 10),
        ("applegpu_g14s", 8192, 6, 6),
        ("applegpu_g14d", 8192, 12, 12),
        ("applegpu_g15s", 2048, 18, 13),
        ("applegpu_g15s", 4096, 12, 15),
        ("applegpu_g16g", 8192, 10, 13),
        ("applegpu_g15d", 4096, 18, 18),
        ("applegpu_g17g", 2048, 18, 33),
        ("applegpu_g17s", 4096, 12, 25),
        ("applegpu_g17s", 8192, 10, 13),
    ],
)
def test_each_release_leaves_the_vector_kernels_at_its_own_row_count(
    version: str, architecture: str, widest: int, before_0_32_1: int, from_0_32_1: int
) -> None:
    limit = from_0_32_1 if version in FROM_0_32_1 else before_0_32_1
    call = replace(LINEAR, mlx_version=version, architecture=architecture, input_size=widest, output_size=512)
    assert _label(call, rows=limit - 1).startswith("qmv")
    assert _label(call, rows=limit).startswith("qmm")


@pytest.mark.parametrize(("version", "limit"), [("0.32.3", 6), ("0.32.4", 7)])
def test_0_32_4_alone_gives_an_m1_max_one_row_more_on_large_weights(version: str, limit: int) -> None:
    call = replace(LINEAR, mlx_version=version, architecture="applegpu_g13s")
    assert _label(call, rows=limit - 1).startswith("qmv")
    assert _label(call, rows=limit).startswith("qmm")
    assert boundaries(replace(call, architecture="applegpu_g13g"), 7)[0] == 6


@pytest.mark.parametrize("version", RELEASES)
def test_several_rows_share_a_vector_kernel_from_0_32_0_on(version: str) -> None:
    has_wide = version >= "0.32.0"
    newer = replace(LINEAR, mlx_version=version, architecture="applegpu_g15g")
    assert _label(newer, rows=1) == "qmv_fast"
    assert _label(newer, rows=2) == ("qmv_wide-2" if has_wide else "qmv_fast")
    assert _label(newer, rows=2, architecture="applegpu_g14g") == "qmv_fast"
    assert _label(newer, rows=2, architecture="applegpu_g14g", mode="mxfp4", group_size=32) == (
        "qmv_wide-2" if has_wide else "qmv_fast"
    )


@pytest.mark.parametrize("version", RELEASES)
def test_the_tile_kernel_splits_k_from_0_31_2_on(version: str) -> None:
    call = replace(LINEAR, mlx_version=version, input_size=4096, output_size=1024)
    if version < "0.31.2":
        assert {_label(call, rows=rows) for rows in (12, 32, 33, 128)} == {"qmm"}
    else:
        assert [_label(call, rows=rows) for rows in (12, 32, 33, 128)] == [
            "qmm_splitk-16",
            "qmm_splitk-16",
            "qmm_splitk-8",
            "qmm_splitk-4",
        ]


@pytest.mark.parametrize(("version", "parts"), [("0.31.2", 6), ("0.32.0", 6), ("0.32.1", 3), ("0.32.4", 3)])
def test_parts_of_small_groups_became_whole_tiles_in_0_32_1(version: str, parts: int) -> None:
    call = replace(LINEAR, mlx_version=version, rows=40, input_size=96, output_size=32, group_size=16, mode="nvfp4")
    assert _label(call) == f"qmm_splitk-{parts}"


@pytest.mark.parametrize(("version", "fast"), [("0.32.0", "qmv"), ("0.32.1", "qmv_fast")])
def test_the_fast_vector_kernel_takes_shorter_rows_of_8_bits_from_0_32_1_on(version: str, fast: str) -> None:
    call = replace(LINEAR, mlx_version=version, bits=8, input_size=768)
    assert _label(call) == fast
    assert _label(call, bits=4) == "qmv"


@pytest.mark.parametrize("version", RELEASES)
def test_half_types_share_a_vector_kernel_from_0_32_1_on_newer_chips(version: str) -> None:
    call = replace(DENSE, mlx_version=version, architecture="applegpu_g15g", input_size=1024, output_size=4096)
    assert _label(call, rows=1) == "gemv"
    if version in FROM_0_32_1:
        assert [_label(call, rows=rows) for rows in (2, 5, 6, 15, 16)] == [
            "gemv_wide-2x32",
            "gemv_wide-5x32",
            "gemv_wide-3x16",
            "gemv_wide-5x16",
            "gemm",
        ]
        assert _label(call, rows=2, dtype="float32") == "gemm"
        assert _label(call, rows=2, architecture="applegpu_g14g") == "gemm"
        assert _label(call, rows=2, input_size=1022) == "gemm"
    else:
        assert boundaries(call, 64) == (2,)


@pytest.mark.parametrize("version", RELEASES)
def test_a_long_inner_size_splits_k_until_the_tiles_are_many(version: str) -> None:
    call = replace(DENSE, mlx_version=version, dtype="float32", input_size=4096, output_size=1024)
    assert _label(call, rows=16) == "gemm_splitk-8"
    assert _label(call, rows=64) == "gemm_splitk-4"
    assert _label(call, rows=256) == "gemm_splitk-2"
    assert _label(call, rows=257) == "gemm"
    assert _label(call, rows=257, architecture="applegpu_g14s") == "gemm_splitk-2"
    assert _label(call, rows=16, input_size=1023) == "gemm"
    assert _label(call, rows=16, input_size=127, output_size=64) == "gemm"


@pytest.mark.parametrize("version", RELEASES)
def test_attention_leaves_the_vector_kernel_at_nine_queries_or_over_32_heads(version: str) -> None:
    call = replace(ATTENTION, mlx_version=version)
    assert _label(call, rows=8) == "sdpa_vector"
    assert _label(call, rows=9) == "sdpa_full"
    assert _label(call, rows=6, queries_per_kv_head=5) == "sdpa_vector"
    assert _label(call, rows=7, queries_per_kv_head=5) != "sdpa_vector"


@pytest.mark.parametrize("version", RELEASES)
def test_blocks_of_two_passes_depend_on_the_queries_too(version: str) -> None:
    base = replace(ATTENTION, mlx_version=version, key_length=8192)
    assert [_label(base, rows=rows, queries_per_kv_head=2) for rows in (1, 2)] == [
        "sdpa_vector_2pass-32",
        "sdpa_vector_2pass-64",
    ]
    max_chip = replace(base, architecture="applegpu_g14s")
    assert _label(max_chip, rows=1) == "sdpa_vector_2pass-64"
    assert _label(max_chip, rows=2) == "sdpa_vector_2pass-128"
    assert _label(max_chip, rows=2, key_length=8193) == "sdpa_vector_2pass-256"
    assert _label(max_chip, rows=2, key_length=32769) == "sdpa_vector_2pass-512"
    assert _label(max_chip, rows=2, key_length=65537) == "sdpa_vector_2pass-1024"
    assert _label(max_chip, rows=8, key_length=1024) == "sdpa_vector_2pass-64"
    ultra = replace(base, architecture="applegpu_g14d")
    assert _label(ultra, rows=1, queries_per_kv_head=2, key_length=8193) == "sdpa_vector_2pass-256"
    assert _label(ultra, rows=1, key_length=16384) == "sdpa_vector_2pass-128"
    assert _label(ultra, rows=2, key_length=16383) == "sdpa_vector_2pass-128"
    assert _label(ultra, rows=2, key_length=16384) == "sdpa_vector_2pass-512"
    assert _label(ultra, rows=2, key_length=65536) == "sdpa_vector_2pass-1024"


def test_head_sizes_of_the_full_kernel_grew_in_0_32_1() -> None:
    call = replace(ATTENTION, rows=64, head_size=96)
    assert _label(call, mlx_version="0.32.0") == "sdpa_unfused"
    assert _label(call, mlx_version="0.32.1") == "sdpa_full"


@pytest.mark.parametrize("version", RELEASES)
def test_what_a_macos_version_decides_is_named_and_not_claimed(version: str) -> None:
    m5 = "applegpu_g17g"
    for call in (
        replace(LINEAR, mlx_version=version, architecture=m5, rows=40),
        replace(DENSE, mlx_version=version, architecture=m5, rows=40),
    ):
        assert not native_kernel(call).known
        assert native_kernel(replace(call, architecture="applegpu_g16g")).known
        assert native_kernel(replace(call, architecture="applegpu_g17p")).known


@pytest.mark.parametrize("version", ["0.32.2", "0.32.3", "0.32.4"])
def test_full_attention_is_not_claimed_where_its_conditions_were_not_read(version: str) -> None:
    assert native_kernel(replace(ATTENTION, mlx_version=version, rows=8)).known
    assert not native_kernel(replace(ATTENTION, mlx_version=version, rows=9)).known
    assert native_kernel(replace(ATTENTION, mlx_version=version, rows=9, head_size=40)) == UNKNOWN


@pytest.mark.parametrize("version", RELEASES)
def test_sorted_experts_share_a_kernel_from_sixteen_rows_and_four_an_expert(version: str) -> None:
    call = replace(LINEAR, mlx_version=version, operation=Operation.GATHER_QMM, experts=4)
    assert _label(call, rows=15) == "gather_qmv"
    assert _label(call, rows=16) == "gather_qmm_sorted"
    assert _label(call, rows=16, experts=5) == "gather_qmv"


@pytest.mark.parametrize("operation", list(Operation))
@pytest.mark.parametrize("backend", list(Backend))
@pytest.mark.parametrize("version", ["0.30.6", "0.31.3", "0.32.5", "0.33.0", "1.0"])
def test_a_release_that_was_not_read_is_unknown(version: str, backend: Backend, operation: Operation) -> None:
    call = replace(LINEAR, mlx_version=version, backend=backend, operation=operation, experts=4, head_size=64)
    assert native_kernel(call) == UNKNOWN
    assert boundaries(call, 64) == ()


@pytest.mark.parametrize("version", RELEASES)
def test_cuda_is_known_from_0_32_0_on_and_changes_where_it_was_measured(version: str) -> None:
    call = replace(LINEAR, backend=Backend.CUDA, mlx_version=version, architecture="")
    dense, attention = replace(call, operation=Operation.MATMUL), replace(ATTENTION, backend=Backend.CUDA)
    if version < "0.32.0":
        assert native_kernel(call) == native_kernel(dense) == UNKNOWN
        return
    assert [_label(call, rows=rows) for rows in (1, 7, 8, 64)] == ["qmv", "qmv", "qmm", "qmm"]
    assert [_label(dense, rows=rows) for rows in (1, 2, 64)] == ["gemv", "cublaslt", "cublaslt"]
    assert [_label(attention, mlx_version=version, rows=rows) for rows in (3, 4)] == ["sdpa_vector", "sdpa_unfused"]
    assert native_kernel(replace(attention, mlx_version=version, dtype="float16")) == UNKNOWN
