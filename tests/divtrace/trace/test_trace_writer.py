"""Flushing, the marks of a dead or living writer, and what a torn write leaves."""

from __future__ import annotations

import io
from pathlib import Path

import h5py
import numpy as np
import pytest

from divtrace.errors import TraceError
from divtrace.recorder.recorder import Recorder
from divtrace.trace.check import check_trace
from divtrace.trace.disk_reserve import is_being_written
from divtrace.trace.header import Header
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import Level
from divtrace.trace.superblock import AsClosed, lookup3, read_superblock
from divtrace.trace.synthetic import write_synthetic
from divtrace.trace.writer import TraceWriter
from tests.divtrace.trace.builders import example_run


def header() -> Header:
    return Header(Level.TOKENS, 1, 1, 4, 32, 4, {}, {}, "weights", "tokenizer")


def live_recording(path: Path, **settings: float) -> Recorder:
    recorder = Recorder(path, top_k=4, **settings)  # type: ignore[arg-type]
    example_run().replay(recorder, end=False)
    return recorder


@pytest.mark.parametrize(
    ("settings", "visible_steps"),
    [
        ({"flush_steps": 3, "flush_seconds": 1e9}, 3),
        ({"flush_steps": 100, "flush_seconds": 1e9}, 0),
        ({"flush_steps": 100, "flush_seconds": 0.0}, 4),
    ],
)
def test_a_flush_comes_after_so_many_steps_or_seconds(
    tmp_path: Path, settings: dict[str, float], visible_steps: int
) -> None:
    recorder = live_recording(tmp_path / "run.h5", **settings)
    with open_trace(tmp_path / "run.h5") as trace:
        assert trace.step_count == visible_steps
    recorder.abandon()


def test_rows_need_every_column_in_one_length_and_width(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "run.h5", header()) as writer:
        with pytest.raises(ValueError, match="strings: column count is missing"):
            writer.append("strings", {"offset": [0]})
        with pytest.raises(ValueError, match="different lengths"):
            writer.append("strings", {"offset": [0], "count": [1, 2]})
        with pytest.raises(ValueError, match="shape"):
            writer.append("strings", {"offset": [[0]], "count": [1]})
        assert writer.length("strings") == 0


def test_a_closed_trace_takes_nothing_more(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "run.h5", header())
    writer.close()
    writer.close()
    with pytest.raises(TraceError, match="is closed"):
        writer.flush()


def test_an_error_of_the_run_leaves_a_trace_without_a_footer(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no such table"), TraceWriter(tmp_path / "run.h5", header()) as writer:
        writer.append_row("no such table", offset=0)
    with open_trace(tmp_path / "run.h5") as trace:
        assert not trace.clean_end


def test_a_clean_file_keeps_no_reserved_space(tmp_path: Path) -> None:
    path = example_run().write(tmp_path / "run.h5")
    with path.open("rb") as stream:
        assert path.stat().st_size == read_superblock(stream).end_of_file


def test_a_living_writer_is_told_from_a_dead_one(tmp_path: Path) -> None:
    recorder = live_recording(tmp_path / "run.h5", flush_steps=1)
    with (tmp_path / "run.h5").open("rb") as stream:
        assert is_being_written(stream.fileno())
        recorder.abandon()
        assert not is_being_written(stream.fileno())


def test_lookup3_gives_the_values_that_its_author_published() -> None:
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551


def test_the_checksum_of_every_superblock_that_hdf5_writes_is_sound(tmp_path: Path) -> None:
    for name in ("a", "b"):
        with h5py.File(tmp_path / name, "w", libver="latest") as file:
            file[name] = np.arange(100)
        with (tmp_path / name).open("rb") as stream:
            superblock = read_superblock(stream)
        assert superblock.is_hdf5
        assert superblock.is_sound
        assert not superblock.left_open


def dead_copy(tmp_path: Path) -> Path:
    recorder = live_recording(tmp_path / "live.h5", flush_steps=1)
    copy = tmp_path / "dead.h5"
    copy.write_bytes((tmp_path / "live.h5").read_bytes())
    recorder.abandon()
    return copy


def test_hdf5_reads_a_dead_file_through_a_view_that_looks_closed(tmp_path: Path) -> None:
    path = dead_copy(tmp_path)
    with pytest.raises(OSError, match="already open"), h5py.File(path, "r"):
        pass
    raw = path.read_bytes()
    with path.open("rb") as stream:
        superblock = read_superblock(stream)
        assert superblock.left_open
        view = AsClosed(stream, superblock)
        with h5py.File(view, "r") as file:
            assert len(file["steps/step"]) == 4
        view.seek(0)
        shown = view.read()
        assert shown[48:] == raw[48:]
        assert next(i for i in range(48) if shown[i] != raw[i]) == 11
    assert path.read_bytes() == raw


def test_chunks_behind_the_end_that_a_dead_writer_had_noted_are_read(tmp_path: Path) -> None:
    path, copy = tmp_path / "live.h5", tmp_path / "dead.h5"
    with h5py.File(path, "w", libver="latest") as file:
        dataset = file.create_dataset("numbers", (0,), "<u4", maxshape=(None,), chunks=(64,))
        file.swmr_mode = True
        file.flush()
        dataset.resize((256,))
        dataset[:] = np.arange(256)
        dataset.flush()
        last = dataset.id.get_chunk_info(3)
        copy.write_bytes(path.read_bytes())
    with copy.open("rb") as stream:
        superblock = read_superblock(stream)
        assert superblock.end_of_file < last.byte_offset + last.size <= copy.stat().st_size
        with h5py.File(AsClosed(stream, superblock), "r") as file:
            assert file["numbers"][:].tolist() == list(range(256))


def test_a_dead_trace_reads_from_a_file_object_too(tmp_path: Path) -> None:
    with open_trace(io.BytesIO(dead_copy(tmp_path).read_bytes())) as trace:
        assert trace.ending() == "ended early at step 4"
        assert trace.output(0).tolist() == [9, 10, 11, 13]


def tear_last_chunk(path: Path, column: str) -> None:
    """Spoil the unused end of the last chunk, as a rewrite that was cut short would."""
    with path.open("rb") as stream, h5py.File(AsClosed(stream, read_superblock(stream)), "r") as file:
        dataset = file[column]
        chunk = dataset.id.get_chunk_info(dataset.id.get_num_chunks() - 1)
    raw = bytearray(path.read_bytes())
    raw[chunk.byte_offset + chunk.size - 9] ^= 0xFF
    path.write_bytes(raw)


def test_a_torn_last_chunk_of_a_dead_trace_is_read_and_reported(tmp_path: Path) -> None:
    path = dead_copy(tmp_path)
    with open_trace(path) as trace:
        whole = trace.column("rows", "key_hash").tobytes()
        assert trace.torn_columns == []
    tear_last_chunk(path, "rows/key_hash")
    with open_trace(path) as trace:
        assert trace.column("rows", "key_hash").tobytes() == whole
        assert trace.column("rows", "key_hash", 4, 7).tobytes() == whole[4 * 16 : 7 * 16]
        assert trace.torn_columns == ["rows/key_hash"]
        assert [str(finding) for finding in check_trace(trace)] == [
            "rows/key_hash: its last chunk does not fit its checksum"
        ]


def test_a_torn_chunk_of_a_trace_that_ended_well_is_damage(tmp_path: Path) -> None:
    path = example_run().write(tmp_path / "run.h5")
    tear_last_chunk(path, "rows/key_hash")
    with open_trace(path) as trace, pytest.raises(TraceError, match="column key_hash: rows 0 to 10 cannot be read"):
        trace.column("rows", "key_hash")


def test_synthetic_traces_are_sound_and_differ_in_the_named_row_alone(tmp_path: Path) -> None:
    write_synthetic(tmp_path / "a.h5", 6000, layers=2)
    write_synthetic(tmp_path / "b.h5", 6000, layers=2, changed_row=5432)
    with open_trace(tmp_path / "a.h5") as a, open_trace(tmp_path / "b.h5") as b:
        assert check_trace(a) == []
        assert check_trace(b) == []
        for column, changed in (("digest", [5432]), ("key_hash", [5432]), ("value_hash", [])):
            differs = a.column("rows", column) != b.column("rows", column)
            assert np.unique(np.nonzero(differs)[0]).tolist() == changed
        steps = a.column("steps", "digest") != b.column("steps", "digest")
        assert np.flatnonzero(steps).tolist() == [5432 // 8]
