"""Bundles carry what is needed, and a hostile one reaches nothing."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from divtrace.errors import EvidenceError, TraceError
from divtrace.trace.bundle import BUNDLE_VERSION, Bundle, is_bundle, write_bundle
from divtrace.trace.check import check_trace
from divtrace.trace.cut import cut_trace, steps_of_requests
from divtrace.trace.reader import open_trace
from divtrace.trace.schema import TABLES, Level
from tests.divtrace.trace.builders import example_run


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two traces and a bundle of them, made once."""
    folder = tmp_path_factory.mktemp("bundle")
    other = example_run()
    other.content[("anchor", 3, 1)] = 7
    paths = example_run().write(folder / "a.h5"), other.write(folder / "b.h5")
    with open_trace(paths[0]) as a, open_trace(paths[1]) as b:
        write_bundle(a, b, folder / "case.zip", ["anchor"])
    return folder


@pytest.fixture
def path(tmp_path: Path, originals: Path) -> Path:
    return Path(shutil.copy(originals / "a.h5", tmp_path))


@pytest.fixture
def bundle(tmp_path: Path, originals: Path) -> Path:
    return Path(shutil.copy(originals / "case.zip", tmp_path))


@pytest.mark.parametrize("steps", range(6))
def test_a_cut_trace_is_sound_and_equals_the_original_up_to_its_end(tmp_path: Path, path: Path, steps: int) -> None:
    with open_trace(path) as trace:
        cut_trace(trace, tmp_path / "cut.h5", steps)
        with open_trace(tmp_path / "cut.h5") as cut:
            assert cut.step_count == min(steps, 4)
            assert check_trace(cut) == []
            for table in TABLES:
                for column in table.columns:
                    if trace.has_column(table.name, column.name):
                        part = cut.column(table.name, column.name)
                        if table.name != "footer":
                            assert part.tobytes() == trace.column(table.name, column.name)[: len(part)].tobytes()
            assert (cut.length("completions"), cut.length("requests")) == ((0, 0), (0, 1), (0, 2), (1, 2), (2, 2))[
                cut.step_count
            ]


def test_an_uncut_copy_keeps_the_ending(tmp_path: Path) -> None:
    path = example_run().write(tmp_path / "early.h5", Level.TOKENS, end=False)
    with open_trace(path) as trace:
        cut_trace(trace, tmp_path / "copy.h5", 99)
    with open_trace(tmp_path / "copy.h5") as copy:
        assert copy.ending() == "ended early at step 4"


def test_a_bundle_gives_back_both_traces_cut_to_the_requests(bundle: Path) -> None:
    assert is_bundle(bundle)
    with Bundle(bundle) as opened:
        a, b = opened.traces
        assert opened.manifest.request_ids == ("anchor",)
        assert opened.manifest.names == ("a.h5", "b.h5")
        assert (a.step_count, b.step_count) == (3, 3)
        assert a.header.workload == {"name": "example"}
        assert a.output(0).tolist() == [9, 10, 11, 13]
        assert a.column("rows", "digest")[3] != b.column("rows", "digest")[3]
        folder = Path(a.path).parent
        assert folder.is_dir()
    assert not folder.exists()


def test_a_bundle_of_an_unknown_request_names_the_known_ones(tmp_path: Path, path: Path) -> None:
    with open_trace(path) as trace:
        with pytest.raises(EvidenceError, match=r"'nobody'.*'anchor', 'follower'"):
            write_bundle(trace, trace, tmp_path / "case.zip", ["nobody"])
        assert steps_of_requests(trace, ["follower"]) == 4


def test_an_existing_file_is_not_overwritten(bundle: Path, path: Path) -> None:
    before = bundle.read_bytes()
    with open_trace(path) as trace, pytest.raises(TraceError, match="exists"):
        write_bundle(trace, trace, bundle)
    assert bundle.read_bytes() == before


def repack(bundle: Path, target: Path, changes: dict[str, bytes | None]) -> Path:
    with zipfile.ZipFile(bundle) as archive:
        members = {name: archive.read(name) for name in archive.namelist()} | changes
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in members.items():
            if raw is not None:
                archive.writestr(name, raw)
    return target


@pytest.mark.parametrize("name", ["../evil.txt", "/tmp/divtrace-evil.txt", "a.h5/../../evil.txt"])
def test_other_members_of_a_bundle_are_never_unpacked(bundle: Path, tmp_path: Path, name: str) -> None:
    hostile = repack(bundle, tmp_path / "hostile.zip", {name: b"evil"})
    with Bundle(hostile) as opened:
        folder = Path(opened.traces[0].path).parent
        assert sorted(item.name for item in folder.iterdir()) == ["a.h5", "b.h5"]
        assert not list(folder.parent.glob("evil.txt"))
    assert not Path("/tmp/divtrace-evil.txt").exists()


MANIFEST = {"bundle_version": BUNDLE_VERSION, "divtrace_version": "1", "request_ids": [], "names": ["a", "b"]}


@pytest.mark.parametrize(
    "changes",
    [
        {"a.h5": None},
        {"manifest.json": None},
        {"a.h5": b"no trace"},
        {"a.h5": bytes(64 << 20)},
        {"manifest.json": b"["},
        {"manifest.json": b"[" * 100_000},
        {"manifest.json": json.dumps(MANIFEST | {"bundle_version": 2}).encode()},
        {"manifest.json": json.dumps(MANIFEST | {"names": ["a"]}).encode()},
        {"manifest.json": json.dumps(MANIFEST | {"request_ids": [1]}).encode()},
        {"manifest.json": b" " * (2 << 20)},
    ],
)
def test_a_bundle_that_lies_ends_in_one_sentence(
    bundle: Path, tmp_path: Path, changes: dict[str, bytes | None]
) -> None:
    with pytest.raises(TraceError) as caught:
        Bundle(repack(bundle, tmp_path / "hostile.zip", changes))
    assert "\n" not in str(caught.value)


def test_a_member_that_would_grow_too_much_is_not_unpacked(bundle: Path, tmp_path: Path) -> None:
    bomb = zipfile.ZipInfo("a.h5")
    hostile = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bundle) as archive, zipfile.ZipFile(hostile, "w", zipfile.ZIP_BZIP2) as target:
        for name in ("manifest.json", "b.h5"):
            target.writestr(name, archive.read(name))
        target.writestr(bomb, bytes(64 << 20), zipfile.ZIP_BZIP2)
    with pytest.raises(TraceError, match="not believable"):
        Bundle(hostile)


@pytest.mark.parametrize("more_bytes", [1, -1])
def test_a_member_that_holds_other_than_it_declares_is_refused(bundle: Path, more_bytes: int) -> None:
    raw = bytearray(bundle.read_bytes())
    name = raw.rindex(b"a.h5")
    size = slice(name - 22, name - 18)
    raw[size] = (int.from_bytes(raw[size], "little") + more_bytes).to_bytes(4, "little")
    bundle.write_bytes(raw)
    with pytest.raises(TraceError, match="damaged"):
        Bundle(bundle)


@pytest.mark.parametrize("damage", ["truncated", "flipped", "no zip", "absent", "twice", "encrypted"])
def test_a_damaged_zip_ends_in_one_sentence(bundle: Path, damage: str) -> None:
    raw = bytearray(bundle.read_bytes())
    if damage == "truncated":
        bundle.write_bytes(raw[: len(raw) // 2])
    elif damage == "flipped":
        raw[len(raw) // 3] ^= 0x10
        bundle.write_bytes(raw)
    elif damage == "no zip":
        bundle.write_bytes(b"no zip")
    elif damage == "absent":
        bundle.unlink()
    elif damage == "twice":
        with pytest.warns(UserWarning, match="Duplicate"), zipfile.ZipFile(bundle, "a") as archive:
            archive.writestr("a.h5", b"another")
    else:
        start = raw.index(b"PK\x01\x02")
        raw[start + 8] |= 1
        bundle.write_bytes(raw)
    with pytest.raises(TraceError, match=str(bundle)):
        Bundle(bundle)
