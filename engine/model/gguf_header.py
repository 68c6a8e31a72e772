"""The header of a GGUF file, read with every count, length and offset checked against the file's size.

A GGUF file is foreign input and the native reader of MLX follows its offsets unchecked, so nothing reaches
that reader before this module has accepted the header. Must not know models, tokenizers or MLX.
Source: the GGUF specification, versions 2 and 3, little-endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from engine.errors import EngineError

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_MAX_COUNT = 2**31 - 1

MetadataScalar = int | float | bool | str
MetadataValue = MetadataScalar | list[MetadataScalar]


@dataclass(frozen=True, slots=True)
class TensorType:
    """One storage type: `block_weights` weights take `block_bytes` bytes."""

    name: str
    block_weights: int
    block_bytes: int


TENSOR_TYPES: Mapping[int, TensorType] = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    8: TensorType("Q8_0", 32, 34),
}
"""Types that MLX reads without loss, by their number in the file."""

_OTHER_TYPE_NAMES: Mapping[int, str] = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S",
    23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip

_SCALAR_FORMATS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where one tensor lies: `shape` outermost first, `start` and `size_bytes` within the file."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensor table of a file whose tensors all lie inside it."""

    path: Path
    metadata: Mapping[str, MetadataValue]
    tensors: tuple[TensorInfo, ...]

    def integer(self, key: str, default: int | None = None) -> int:
        """The whole number at `key`. Raises EngineError when it is missing (without default) or not one."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, "one whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """The number at `key`. Raises EngineError when it is missing (without default) or not one."""
        value = self.metadata.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "one number")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """The truth value at `key`, or the default. Raises EngineError when it is of another type."""
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        """The text at `key`. Raises EngineError when it is missing (without default) or not text."""
        value = self.metadata.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "text")
        return value

    def strings(self, key: str) -> list[str]:
        """The list of texts at `key`. Raises EngineError when it is missing or holds anything else."""
        value = self.metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, "a list of texts")
        return [str(item) for item in value]

    def numbers(self, key: str) -> list[float]:
        """The list of numbers at `key`. Raises EngineError when it is missing or holds anything else."""
        value = self.metadata.get(key)
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self._wrong(key, "a list of numbers")
        return [float(item) for item in value]

    def _wrong(self, key: str, wanted: str) -> EngineError:
        state = "has another type in" if key in self.metadata else "is missing from"
        return EngineError(f"{self.path}: metadata key '{key}' must be {wanted} and {state} this GGUF file")


def is_gguf(path: Path) -> bool:
    """True when the file begins with the GGUF magic, whatever its name is."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_header(path: Path) -> GgufHeader:
    """Read and check the header of the file at `path`.

    Raises EngineError when it is not GGUF, of another version or byte order, damaged, truncated, or holds a
    tensor of a type outside `TENSOR_TYPES`.
    """
    if path.stat().st_size < 24 or not is_gguf(path):
        raise EngineError(f"{path} is not a GGUF file: it does not begin with the GGUF magic")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return _HeaderReader(path, data).read()


class _HeaderReader:
    """A cursor over the mapped file; every advance is checked."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._offset = len(MAGIC)

    def read(self) -> GgufHeader:
        version = self._scalar("<I")
        if version not in _VERSIONS:
            raise EngineError(f"{self._path}: GGUF version {version} (or big-endian) is not 2 or 3; convert it")
        tensor_count = self._count("tensors")
        metadata: dict[str, MetadataValue] = {}
        for _ in range(self._count("metadata entries")):
            key = self._string()
            if key in metadata:
                raise self._damaged(f"metadata key '{key}' appears twice")
            metadata[key] = self._value(self._scalar("<I"))
        tables = [self._tensor_row() for _ in range(tensor_count)]
        return GgufHeader(self._path, metadata, self._place(tables, metadata))

    def _damaged(self, what: str) -> EngineError:
        return EngineError(f"{self._path} is damaged or truncated: {what}; get the file again")

    def _take(self, size_bytes: int) -> int:
        start = self._offset
        if size_bytes < 0 or size_bytes > self._size - start:
            raise self._damaged(f"its header runs past the end at byte {start}")
        self._offset = start + size_bytes
        return start

    def _scalar(self, layout: str) -> int:
        start = self._take(struct.calcsize(layout))
        return struct.unpack_from(layout, self._data, start)[0]

    def _count(self, what: str) -> int:
        count = self._scalar("<Q")
        if count > min(_MAX_COUNT, self._size):
            raise self._damaged(f"it claims {count} {what}")
        return count

    def _string(self) -> str:
        length = self._scalar("<Q")
        start = self._take(length)
        # Token tables may hold pieces that are not UTF-8; surrogates keep them apart and reversible.
        return self._data[start : start + length].decode("utf-8", "surrogateescape")

    def _value(self, kind: int) -> MetadataValue:
        if kind == _STRING:
            return self._string()
        if kind in _SCALAR_FORMATS:
            return self._scalar(_SCALAR_FORMATS[kind])
        if kind != _ARRAY:
            raise self._damaged(f"unknown metadata type {kind} at byte {self._offset}")
        return self._array(self._scalar("<I"))

    def _array(self, kind: int) -> list[MetadataScalar]:
        count = self._count("array items")
        if kind == _STRING:
            return [self._string() for _ in range(count)]
        if kind not in _SCALAR_FORMATS:
            raise self._damaged(f"unknown or nested array type {kind} at byte {self._offset}")
        layout = f"<{count}{_SCALAR_FORMATS[kind][1]}"
        return list(struct.unpack_from(layout, self._data, self._take(struct.calcsize(layout))))

    def _tensor_row(self) -> TensorInfo:
        """One row of the tensor table; `start` is still relative to the data section."""
        name = self._string()
        dimensions = self._scalar("<I")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise self._damaged(f"tensor '{name}' claims {dimensions} dimensions")
        sizes = [self._scalar("<Q") for _ in range(dimensions)]
        kind = self._scalar("<I")
        start = self._scalar("<Q")
        if kind not in TENSOR_TYPES:
            kind_name = _OTHER_TYPE_NAMES.get(kind, f"number {kind}")
            wanted = ", ".join(known.name for known in TENSOR_TYPES.values())
            raise EngineError(
                f"{self._path}: tensor '{name}' has type {kind_name}, and only {wanted} can be run; "
                "requantize the model to one of these"
            )
        storage = TENSOR_TYPES[kind]
        if any(not 0 < size <= _MAX_COUNT for size in sizes) or sizes[0] % storage.block_weights:
            raise self._damaged(f"tensor '{name}' has the shape {sizes[::-1]}, which {storage.name} cannot hold")
        size_bytes = prod(sizes) // storage.block_weights * storage.block_bytes
        return TensorInfo(name, tuple(reversed(sizes)), storage, start, size_bytes)

    def _place(self, table: list[TensorInfo], metadata: Mapping[str, MetadataValue]) -> tuple[TensorInfo, ...]:
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 8 or alignment > 65536 or alignment & (alignment - 1):
            raise self._damaged(f"its alignment is {alignment!r}, not a power of two from 8 to 65536")
        data_start = -(-self._offset // alignment) * alignment
        if len({info.name for info in table}) != len(table):
            raise self._damaged("two tensors have the same name")
        placed = []
        for info in table:
            start = data_start + info.start
            if info.start % alignment or start + info.size_bytes > self._size:
                raise self._damaged(f"tensor '{info.name}' ends at byte {start + info.size_bytes} of {self._size}")
            placed.append(TensorInfo(info.name, info.shape, info.type, start, info.size_bytes))
        return tuple(placed)
