"""A GGUF header is believed only as far as the file's size backs it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import EngineError
from engine.model.gguf_header import is_gguf, read_header
from engine.model.load import load_model
from fixtures.tiny_gguf import write_tiny_gguf


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def entry(key: bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def tensor(name: bytes, sizes: tuple[int, ...], kind: int, start: int) -> bytes:
    dimensions = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + dimensions + struct.pack("<IQ", kind, start)


def file_bytes(
    entries: list[bytes] = [],  # noqa: B006
    tensors: list[bytes] = [],  # noqa: B006
    data: bytes = b"",
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    tensor_count, entry_count = counts or (len(tensors), len(entries))
    head = b"GGUF" + struct.pack("<IQQ", version, tensor_count, entry_count) + b"".join(entries + tensors)
    return head + bytes(-len(head) % 32) + data


def written(tmp_path: Path, raw: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(raw)
    return path


def test_every_metadata_type_is_read(tmp_path: Path) -> None:
    values = {"<B": 200, "<b": -3, "<H": 60000, "<h": -300, "<I": 4_000_000_000, "<i": -70000, "<f": 0.5}
    values |= {"<?": True, "<Q": 2**63, "<q": -(2**62), "<d": 0.1}
    kinds = (0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12)
    entries = [
        entry(b"k%d" % kind, kind, struct.pack(layout, value))
        for kind, (layout, value) in zip(kinds, values.items(), strict=True)
    ]
    entries.append(entry(b"text", 8, text("Köln".encode())))
    entries.append(entry(b"texts", 9, struct.pack("<IQ", 8, 2) + text(b"a") + text(b"\xff")))
    entries.append(entry(b"numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)))
    metadata = dict(read_header(written(tmp_path, file_bytes(entries))).metadata)
    assert metadata.pop("text") == "Köln"
    assert metadata.pop("texts") == ["a", "\udcff"]
    assert metadata.pop("numbers") == [1, -2, 3]
    assert list(metadata.values()) == list(values.values())


def test_tensors_are_placed_where_the_file_has_them(tmp_path: Path) -> None:
    rows = [tensor(b"a", (32, 3), 3, 0), tensor(b"b", (4,), 0, 64)]
    raw = file_bytes([], rows, bytes(range(80)))
    first, second = read_header(written(tmp_path, raw)).tensors
    assert (first.name, first.shape, first.type.name, first.size_bytes) == ("a", (3, 32), "Q4_1", 60)
    assert (second.name, second.shape, second.type.name, second.size_bytes) == ("b", (4,), "F32", 16)
    assert raw[second.start : second.start + 16] == bytes(range(64, 80))


HUGE = 2**62

BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF file"),
    "other magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "magic only": (b"GGUF", "not a GGUF file"),
    "old version": (file_bytes(version=1), "version 1"),
    "big-endian": (file_bytes(version=3 << 24), "version 50331648"),
    "tensor count": (file_bytes(counts=(HUGE, 0)), f"claims {HUGE} tensors"),
    "entry count": (file_bytes(counts=(0, HUGE)), f"claims {HUGE} metadata entries"),
    "missing entries": (file_bytes(counts=(0, 3)), "damaged or truncated"),
    "key length": (file_bytes([struct.pack("<Q", HUGE)]), "runs past the end"),
    "text length": (file_bytes([entry(b"k", 8, struct.pack("<Q", HUGE))]), "runs past the end"),
    "array length": (file_bytes([entry(b"k", 9, struct.pack("<IQ", 0, HUGE))]), f"claims {HUGE} array items"),
    "array of arrays": (file_bytes([entry(b"k", 9, struct.pack("<IQ", 9, 1))]), "nested array type 9"),
    "array past the end": (file_bytes([entry(b"k", 9, struct.pack("<IQ", 12, 60))]), "runs past the end"),
    "value type": (file_bytes([entry(b"k", 99, b"")]), "unknown metadata type 99"),
    "key twice": (file_bytes([entry(b"k", 0, b"\1"), entry(b"k", 0, b"\2")]), "'k' appears twice"),
    "no dimension": (file_bytes([], [tensor(b"t", (), 0, 0)], bytes(64)), "claims 0 dimensions"),
    "dimensions": (file_bytes([], [tensor(b"t", (1,) * 5, 0, 0)], bytes(64)), "claims 5 dimensions"),
    "empty size": (file_bytes([], [tensor(b"t", (4, 0), 0, 0)], bytes(64)), "which F32 cannot hold"),
    "overflowing size": (file_bytes([], [tensor(b"t", (2**31, 2**33), 0, 0)], bytes(64)), "F32 cannot hold"),
    "part of a group": (file_bytes([], [tensor(b"t", (33,), 2, 0)], bytes(64)), "which Q4_0 cannot hold"),
    "storage type": (file_bytes([], [tensor(b"t", (256,), 14, 0)], bytes(256)), "has type Q6_K"),
    "unknown type": (file_bytes([], [tensor(b"t", (32,), 77, 0)], bytes(64)), "has type number 77"),
    "data past the end": (file_bytes([], [tensor(b"t", (16,), 0, 32)], bytes(95)), "ends at byte"),
    "offset past the end": (file_bytes([], [tensor(b"t", (16,), 0, HUGE)], bytes(64)), "ends at byte"),
    "crooked offset": (file_bytes([], [tensor(b"t", (4,), 0, 7)], bytes(64)), "ends at byte"),
    "name twice": (
        file_bytes([], [tensor(b"t", (4,), 0, 0)] * 2, bytes(64)),
        "two tensors have the same name",
    ),
    "alignment": (
        file_bytes([entry(b"general.alignment", 4, struct.pack("<I", 48))], [], bytes(64)),
        "alignment is 48",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_damaged_file_is_refused_with_one_sentence(tmp_path: Path, name: str) -> None:
    raw, reason = BAD_FILES[name]
    path = written(tmp_path, raw)
    with pytest.raises(EngineError, match=reason) as caught:
        read_header(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf", layers=1).path.read_bytes()
    for kept in (0, 3, 4, 10, 24, 25, 500, len(whole) // 3, len(whole) // 2, len(whole) - 40):
        with pytest.raises(EngineError):
            load_model(written(tmp_path, whole[:kept]))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_bytes_behind_the_magic_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    base = bytearray(file_bytes(*VALID))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(4, len(base) - 8))
        base[at : at + 8] = data.draw(
            st.one_of(st.binary(min_size=8, max_size=8), st.integers(0, 2**64 - 1).map(lambda n: n.to_bytes(8)))
        )
    try:
        header = read_header(written(tmp_path, bytes(base)))
    except EngineError:
        return
    assert all(info.start + info.size_bytes <= len(base) for info in header.tensors)


VALID = (
    [
        entry(b"general.architecture", 8, text(b"llama")),
        entry(b"list", 9, struct.pack("<IQ", 8, 2) + text(b"a") + text(b"b")),
        entry(b"number", 4, struct.pack("<I", 5)),
    ],
    [tensor(b"a", (32, 2), 2, 0), tensor(b"b", (4,), 0, 64)],
    bytes(96),
)

LOAD_EACH = """
import json, sys
from engine.errors import EngineError
from engine.model.load import load_model
outcomes = {"loaded": 0, "refused": 0}
for path in sys.argv[1:]:
    try:
        load_model(path)
        outcomes["loaded"] += 1
    except EngineError:
        outcomes["refused"] += 1
print(json.dumps(outcomes))
"""


def test_no_flipped_header_byte_crashes_the_native_reader(tmp_path: Path) -> None:
    whole = write_tiny_gguf(tmp_path / "whole.gguf", layers=1, storage="Q4_0").path.read_bytes()
    header_end = read_header(tmp_path / "whole.gguf").tensors[0].start
    paths = []
    for index in range(150):
        at = 4 + (index * 2_654_435_761) % (header_end - 4)
        flip: Callable[[int], int] = (lambda byte: byte ^ 0xFF) if index % 2 else (lambda byte: byte ^ 1)
        path = tmp_path / f"{index}.gguf"
        path.write_bytes(whole[:at] + bytes([flip(whole[at])]) + whole[at + 1 :])
        paths.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", LOAD_EACH, *paths], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    outcomes = json.loads(done.stdout)
    assert outcomes["loaded"] + outcomes["refused"] == 150
    assert outcomes["refused"] > 50


def test_the_magic_decides_and_not_the_name(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "model.bin", layers=1).path
    assert is_gguf(path)
    assert load_model(path).architecture == "llama"
