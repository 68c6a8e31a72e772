"""Commands run in this process on a tiny model, without network and without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from divtrace.commands.main import run
from fixtures.tiny_gguf import write_tiny_gguf


@dataclass(frozen=True)
class Answer:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str


Divtrace = Callable[..., Answer]


@pytest.fixture
def divtrace(capfd: pytest.CaptureFixture[str]) -> Divtrace:
    """Run a command line and return its answer."""

    def call(*arguments: object) -> Answer:
        capfd.readouterr()
        code = run([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Answer(code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random llama in a GGUF file."""
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(path, "llama", storage="Q4_1")
    return path


def workload_document(model: Path, anchor_tokens: int = 60) -> dict[str, object]:
    """Two requests; the follower joins after the anchor's first token and leaves early."""
    return {
        "version": 1,
        "model": str(model),
        "requests": [
            {"id": "anchor", "prompt_tokens": list(range(5, 25)), "max_tokens": anchor_tokens, "ignore_eos": True},
            {
                "id": "follower",
                "prompt_tokens": list(range(60, 100)),
                "max_tokens": 8,
                "ignore_eos": True,
                "arrival": {"after": {"request": "anchor", "tokens": 1}},
            },
        ],
        "settings": {"policy": "threshold:4"},
        "arms": {"serial": {"max_active": 1}, "batched": {"max_active": 2}},
    }


@pytest.fixture
def workload(tmp_path: Path, tiny_model_path: Path) -> Path:
    """The workload as a file."""
    path = tmp_path / "workload.yaml"
    path.write_text(yaml.safe_dump(workload_document(tiny_model_path)))
    return path


def lines_of(text: str) -> Sequence[str]:
    """Lines that hold something."""
    return [line for line in text.splitlines() if line.strip()]
