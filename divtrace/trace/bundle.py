"""A bundle: one zip file with what somebody else needs to look into a difference, and never weights.

It holds two traces, cut to the steps of the requests at stake, and a manifest. A bundle that is opened is an input from
somebody else: only the members named here are read, into a folder of their own, up to a size that was declared.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from divtrace import __version__
from divtrace.errors import TraceError
from divtrace.trace.cut import cut_trace, steps_of_requests
from divtrace.trace.reader import Trace, open_trace

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
TRACES = ("a.h5", "b.h5")
LARGEST_MANIFEST_BYTES = 1 << 20
LARGEST_TRACE_BYTES = 16 << 30
LARGEST_EXPANSION = 1100
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a bundle says about itself: the requests at stake (empty: all), and where its traces came from."""

    bundle_version: int
    divtrace_version: str
    request_ids: tuple[str, ...]
    names: tuple[str, str]


class Bundle:
    """An open bundle: its manifest and two open traces. Use as a context manager; its folder goes away with it."""

    def __init__(self, path: str | Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="divtrace-bundle-")
        self.traces: tuple[Trace, ...] = ()
        try:
            self.manifest, paths = _unpack(Path(path), Path(self._folder.name))
            for extracted in paths:
                self.traces += (open_trace(extracted),)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the traces and remove what was unpacked."""
        for trace in self.traces:
            trace.close()
        self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def write_bundle(a: Trace, b: Trace, path: str | Path, request_ids: Sequence[str] = ()) -> Path:
    """Pack two open traces into `path`, cut to the steps of `request_ids` (all steps when empty).

    Raises:
        EvidenceError: a trace has no such request.
        TraceError: a trace is damaged, or `path` exists or cannot be written.
    """
    target = Path(path)
    manifest = {
        "bundle_version": BUNDLE_VERSION,
        "divtrace_version": __version__,
        "request_ids": list(request_ids),
        "names": [Path(a.path).name, Path(b.path).name],
    }
    with tempfile.TemporaryDirectory(prefix="divtrace-bundle-") as folder:
        cuts = []
        for trace, name in zip((a, b), TRACES, strict=True):
            steps = steps_of_requests(trace, request_ids) if request_ids else trace.step_count
            cuts.append(cut_trace(trace, Path(folder) / name, steps))
        try:
            with zipfile.ZipFile(target, "x", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr(MANIFEST, json.dumps(manifest, indent=1))
                for cut in cuts:
                    archive.write(cut, cut.name)
        except FileExistsError as error:
            raise TraceError(f"{target}: the file exists; choose another name.") from error
        except OSError as error:
            raise TraceError(f"{target}: cannot write the bundle ({error.strerror}).") from error
    return target


def is_bundle(path: str | Path) -> bool:
    """True for an existing zip file."""
    return Path(path).is_file() and zipfile.is_zipfile(path)


def _unpack(path: Path, folder: Path) -> tuple[Manifest, list[Path]]:
    damaged = f"{path}: not a bundle, or damaged; make it again with `divtrace bundle`."
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(archive, damaged)
            manifest = _parse_manifest(_read_small(archive, members[MANIFEST], damaged), damaged)
            return manifest, [_extract(archive, members[name], folder / name, damaged) for name in TRACES]
    except FileNotFoundError as error:
        raise TraceError(f"{path}: no such file; give a bundle that `divtrace bundle` wrote.") from error
    except (OSError, zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, ValueError) as error:
        raise TraceError(damaged) from error


def _members(archive: zipfile.ZipFile, damaged: str) -> dict[str, zipfile.ZipInfo]:
    """The three members by name; others are never touched, so no path of theirs can lead anywhere."""
    found: dict[str, zipfile.ZipInfo] = {}
    for member in archive.infolist():
        if member.filename in found:
            raise TraceError(damaged)
        found[member.filename] = member
    for name in (MANIFEST, *TRACES):
        if name not in found:
            raise TraceError(damaged)
        limit_bytes = LARGEST_MANIFEST_BYTES if name == MANIFEST else LARGEST_TRACE_BYTES
        size_bytes = found[name].file_size
        if size_bytes > limit_bytes or size_bytes > LARGEST_EXPANSION * max(found[name].compress_size, 1):
            raise TraceError(f"{archive.filename}: member {name} claims {size_bytes} bytes; that is not believable.")
    return found


def _read_small(archive: zipfile.ZipFile, member: zipfile.ZipInfo, damaged: str) -> bytes:
    with archive.open(member) as stream:
        raw = stream.read(LARGEST_MANIFEST_BYTES + 1)
    if len(raw) != member.file_size:
        raise TraceError(damaged)
    return raw


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, damaged: str) -> Path:
    """Copy one member into a file of our choosing, at most as many bytes as it declared."""
    left_bytes = member.file_size
    with archive.open(member) as stream, target.open("xb") as file:
        while block := stream.read(min(BLOCK_BYTES, left_bytes + 1)):
            left_bytes -= len(block)
            if left_bytes < 0:
                raise TraceError(damaged)
            file.write(block)
    if left_bytes:
        raise TraceError(damaged)
    return target


def _parse_manifest(raw: bytes, damaged: str) -> Manifest:
    try:
        record: Any = json.loads(raw)
        version, request_ids, names = record["bundle_version"], record["request_ids"], record["names"]
        texts = [record["divtrace_version"], *request_ids, *names]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TraceError(damaged) from error
    if not all(isinstance(text, str) for text in texts) or len(names) != len(TRACES):
        raise TraceError(damaged)
    if version != BUNDLE_VERSION:
        raise TraceError(
            f"bundle version {version!r} is not one this divtrace reads ({BUNDLE_VERSION}); update divtrace."
        )
    return Manifest(version, record["divtrace_version"], tuple(request_ids), (names[0], names[1]))
