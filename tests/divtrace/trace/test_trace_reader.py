"""The reader against files that lie."""

from __future__ import annotations

import io
import os
import shutil
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import xxhash

from divtrace.errors import TraceError
from divtrace.trace.check import check_trace
from divtrace.trace.cut import cut_trace
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import TABLES, Level
from tests.divtrace.trace.builders import example_run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example_run().write(tmp_path_factory.mktemp("reader") / "run.h5")


@pytest.fixture
def path(tmp_path: Path, original: Path) -> Path:
    return Path(shutil.copy(original, tmp_path))


def read_everything(source: object) -> None:
    with open_trace(source) as trace:
        for table in TABLES:
            for column in table.columns:
                if trace.has_column(table.name, column.name):
                    trace.column(table.name, column.name)
        for request in range(trace.length("requests")):
            trace.prompt(request)
            trace.output(request)
        trace.request_ids()


def replace_column(file: h5py.File, name: str, data: object, **options: object) -> None:
    del file[name]
    file.create_dataset(name, data=data, chunks=True, maxshape=(None,), **options)


def claim_lengths(file: h5py.File, lengths: npt.NDArray[np.uint64]) -> None:
    file["flushes/lengths"][-1] = lengths
    file["flushes/checksum"][-1] = xxhash.xxh3_64_intdigest(lengths.tobytes())


def external_link(file: h5py.File) -> None:
    del file["rows/position"]
    file["rows/position"] = h5py.ExternalLink("elsewhere.h5", "/rows/position")


def soft_link(file: h5py.File) -> None:
    del file["rows/position"]
    file["rows/position"] = h5py.SoftLink("/rows/row")


def group_loop(file: h5py.File) -> None:
    del file["rows/position"]
    file["rows/position"] = file["rows"]


def two_names(file: h5py.File) -> None:
    del file["rows/position"]
    file["rows/position"] = file["rows/row"]


def virtual(file: h5py.File) -> None:
    rows = len(file["rows/position"])
    del file["rows/position"]
    layout = h5py.VirtualLayout((rows,), "<u4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "/rows/position", (rows,), "<u4")
    file["rows"].create_virtual_dataset("position", layout)


def external_storage(file: h5py.File) -> None:
    rows = len(file["rows/position"])
    del file["rows/position"]
    file["rows"].create_dataset("position", (rows,), "<u4", external=[("elsewhere.bin", 0, rows * 4)])


def unknown_filter(file: h5py.File) -> None:
    replace_column(file, "rows/position", file["rows/position"][:], compression="lzf")


def other_type(file: h5py.File) -> None:
    replace_column(file, "rows/position", file["rows/position"][:].astype(">u4"))


def variable_length(file: h5py.File) -> None:
    rows = len(file["rows/position"])
    del file["rows/position"]
    file["rows"].create_dataset("position", (rows,), h5py.string_dtype(), chunks=True, maxshape=(None,))


def other_width(file: h5py.File) -> None:
    rows = len(file["rows/key_hash"])
    del file["rows/key_hash"]
    file["rows"].create_dataset("key_hash", (rows, 3), "<u8", chunks=True, maxshape=(None, 3))


def too_few_rows(file: h5py.File) -> None:
    replace_column(file, "rows/position", file["rows/position"][:-1])


def rows_that_are_not_stored(file: h5py.File) -> None:
    rows = len(file["rows/position"])
    del file["rows/position"]
    file["rows"].create_dataset("position", (rows,), "<u4", chunks=(4,), maxshape=(None,))


def huge_claim(file: h5py.File) -> None:
    file["rows/position"].resize((1 << 40,))
    claim_lengths(file, np.full(file["flushes/lengths"].shape[1], 1 << 40, "<u8"))


def flush_with_a_wrong_checksum(file: h5py.File) -> None:
    file["flushes/lengths"][-1, 3] -= 1


def flush_that_promises_one_row_more(file: h5py.File) -> None:
    lengths = file["flushes/lengths"][-1]
    lengths[file["flushes/lengths"].shape[1] - 13] += 1
    claim_lengths(file, lengths)


def huge_chunk(file: h5py.File) -> None:
    rows = file["rows/position"][:]
    del file["rows/position"]
    file["rows"].create_dataset("position", data=rows, chunks=(1 << 23,), maxshape=(None,), compression="gzip")


def missing_column(file: h5py.File) -> None:
    del file["rows/position"]


def missing_table(file: h5py.File) -> None:
    del file["rows"]


def missing_flushes(file: h5py.File) -> None:
    del file["flushes"]


def request_out_of_range(file: h5py.File) -> None:
    file["rows/request"][2] = 2


def string_out_of_range(file: h5py.File) -> None:
    file["requests/id_string"][0] = 1 << 31


def offset_out_of_range(file: h5py.File) -> None:
    file["steps/row_offset"][3] = (1 << 64) - 1


def count_out_of_range(file: h5py.File) -> None:
    file["requests/prompt_count"][1] = 1 << 20


def string_offset_out_of_range(file: h5py.File) -> None:
    file["strings/offset"][0] = 1 << 63


def not_utf8(file: h5py.File) -> None:
    file["string_bytes/value"][0] = 0xFF


def gap_in_the_output(file: h5py.File) -> None:
    file["sampled/position"][1] = 9


def header_of_another_type(file: h5py.File) -> None:
    del file["header"]
    file["header"] = "{}"


def header_that_is_no_json(file: h5py.File) -> None:
    file["header"][0] = ord("[")


def hash_of_an_unprintable_name(file: h5py.File) -> None:
    """As long as the real name: the header keeps its length."""
    written = file["header"][:].tobytes()
    file["header"][:] = np.frombuffer(written.replace(b'"xxh3_64"', b'"x\\u001b"'), np.uint8)


def no_version(file: h5py.File) -> None:
    del file.attrs["divtrace_schema_version"]


def version_of_another_type(file: h5py.File) -> None:
    file.attrs["divtrace_schema_version"] = "one"


LIES = [
    two_names, external_link, soft_link, group_loop, virtual, external_storage, unknown_filter, other_type,
    variable_length, other_width, too_few_rows, flush_with_a_wrong_checksum,
    flush_that_promises_one_row_more, rows_that_are_not_stored, huge_claim, huge_chunk, missing_column,
    missing_table, missing_flushes, request_out_of_range, string_out_of_range, offset_out_of_range,
    count_out_of_range, string_offset_out_of_range, not_utf8, gap_in_the_output, header_of_another_type,
    header_that_is_no_json, hash_of_an_unprintable_name, no_version, version_of_another_type,
]  # fmt: skip


def test_an_honest_file_reads(path: Path) -> None:
    read_everything(path)


REASONS = {
    external_link: "a link to another place",
    soft_link: "a link to another place",
    two_names: "the same object under two names",
    virtual: "outside of the file",
    external_storage: "outside of the file",
    unknown_filter: "unknown filter",
    huge_claim: "promised, but not stored",
    huge_chunk: "chunks are larger",
    flush_with_a_wrong_checksum: "no complete flush",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_ends_in_one_sentence_that_names_the_file(path: Path, lie: Callable[[h5py.File], None]) -> None:
    copy = path.with_name("elsewhere.h5")
    copy.write_bytes(path.read_bytes())
    with h5py.File(copy, "r") as file:
        path.with_name("elsewhere.bin").write_bytes(file["rows/position"][:].tobytes())
    with h5py.File(path, "r+") as file:
        lie(file)
    tracemalloc.start()
    with pytest.raises(TraceError) as caught:
        read_everything(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    message = str(caught.value)
    assert str(path) in message
    assert REASONS.get(lie, "") in message
    assert message.endswith(".")
    assert "\n" not in message
    assert peak_bytes < 32 << 20


def test_a_newer_schema_is_refused_by_its_number(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["divtrace_schema_version"] = 2
    with pytest.raises(TraceError, match=r"trace schema 2 .*reads 1.*; update divtrace"):
        open_trace(path)


def test_every_flipped_byte_of_a_hash_chunk_is_noticed(path: Path) -> None:
    with h5py.File(path, "r") as file:
        chunk = file["rows/key_hash"].id.get_chunk_info(0)
    raw = bytearray(path.read_bytes())
    for offset in (0, 8, chunk.size - 5, chunk.size - 1):
        damaged = bytearray(raw)
        damaged[chunk.byte_offset + offset] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match="table rows, column key_hash"):
            read_everything(path)


@pytest.mark.parametrize("kept", [0, 1, 7, 100, 0.5, 0.9, -1])
def test_a_truncated_file_ends_in_one_sentence(path: Path, kept: float) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[: int(kept * len(raw)) if isinstance(kept, float) else kept])
    with pytest.raises(TraceError, match=str(path)):
        read_everything(path)


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "absent.h5", "."):
        with pytest.raises(TraceError, match=str(tmp_path)):
            open_trace(tmp_path / name)


def test_an_hdf5_file_of_somebody_else_is_not_a_trace(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["header"] = np.arange(3)
    with pytest.raises(TraceError, match="not a trace"):
        open_trace(tmp_path / "other.h5")


def test_a_file_object_reads_like_a_path(path: Path) -> None:
    read_everything(io.BytesIO(path.read_bytes()))
    with path.open("rb") as stream, open_trace(stream) as trace:
        assert trace.path == str(path)
        assert trace.output(0).tolist() == [9, 10, 11, 13]


def test_a_url_reads_like_a_path_and_a_bad_one_ends_in_one_sentence(path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://traces/run.h5", "wb") as stream:
        stream.write(path.read_bytes())
    read_everything("memory://traces/run.h5")
    for url in ("memory://traces/absent.h5", "nonsense://a/b"):
        with pytest.raises(TraceError, match=url):
            open_trace(url)


def test_parts_of_a_column_equal_the_whole(path: Path) -> None:
    with open_trace(path) as trace:
        whole = trace.column("rows", "key_hash")
        assert (trace.column("rows", "key_hash", 3, 7) == whole[3:7]).all()
        assert len(trace.column("rows", "key_hash", 8, 400)) == 2
        assert len(trace.column("rows", "key_hash", 400)) == 0
        chunks = list(trace.iter_chunks("rows", ("digest", "key_hash"), rows=3))
        assert [len(chunk["digest"]) for chunk in chunks] == [3, 3, 3, 1]
        assert (np.concatenate([chunk["key_hash"] for chunk in chunks]) == whole).all()


def test_what_a_reader_returns_cannot_be_changed(path: Path) -> None:
    with open_trace(path) as trace, pytest.raises(ValueError, match="read-only"):
        trace.column("rows", "position")[0] = 5


def test_opening_a_trace_leaves_its_bytes_alone(path: Path) -> None:
    before = path.read_bytes()
    read_everything(path)
    assert path.read_bytes() == before


def test_a_trace_of_a_lower_level_reads(tmp_path: Path) -> None:
    read_everything(example_run().write(tmp_path / "tokens.h5", Level.TOKENS))


def test_a_trace_from_before_some_columns_is_read_checked_and_cut(tmp_path: Path, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        for name in ("sampled/committed_token", "footer/failure_offset", "footer/failure_count"):
            del file[name]
    with open_trace(path) as trace:
        assert check_trace(trace) == []
        assert trace.is_complete
        assert not trace.is_stored("sampled", "committed_token")
        outputs = [trace.output(request).tolist() for request in range(2)]
        cut_trace(trace, tmp_path / "cut.h5", 4)
    with open_trace(tmp_path / "cut.h5") as cut:
        assert check_trace(cut) == []
        assert [cut.output(request).tolist() for request in range(2)] == outputs


def test_a_missing_column_of_the_first_version_is_damage(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["sampled/chosen"]
    with open_trace(path) as trace:
        assert [finding.place for finding in check_trace(trace)] == ["sampled/chosen"]


def test_a_trace_inside_a_zip_file_is_read_through_its_url(tmp_path: Path, path: Path) -> None:
    pytest.importorskip("fsspec")
    with zipfile.ZipFile(tmp_path / "runs.zip", "w") as archive:
        archive.write(path, "runs/run.h5")
    read_everything(f"zip://runs/run.h5::{tmp_path}/runs.zip")
    with pytest.raises(TraceError, match=r"absent\.h5::.*cannot be opened"):
        open_trace(f"zip://absent.h5::{tmp_path}/runs.zip")


def test_a_url_of_nothing_says_that_nothing_is_there(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    with pytest.raises(TraceError, match="No such file or directory"):
        open_trace("memory://traces/absent.h5")


@pytest.mark.parametrize("source", [None, 5, ["run.h5"]])
def test_what_is_no_path_url_or_file_is_named(source: object) -> None:
    with pytest.raises(TraceError, match="is no trace; give a path, a URL or a binary file object"):
        open_trace(source)
