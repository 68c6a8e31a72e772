"""The example of docs/reference/python.md runs as it stands, on a tiny model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from fixtures.tiny_gguf import write_tiny_gguf
from tests.docs.console import ROOT
from tests.e2e.conftest import workload_document


def test_the_example_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="the example draws figures: pip install 'divtrace[plot]'")
    model = tmp_path / "tiny.gguf"
    write_tiny_gguf(model, "llama", storage="Q4_1")
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(workload_document(model)))
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "reference" / "python.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[1].split()[-1] in ("proven", "shown")
    assert sorted(path.name for path in (tmp_path / "runs").glob("*.h5")) == ["batched.h5", "serial.h5"]
