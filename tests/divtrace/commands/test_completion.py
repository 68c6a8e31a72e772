"""What a shell is offered: in click's protocol for every shell, and in a real bash with the printed script."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from divtrace.commands.arguments import POLICIES
from divtrace.commands.completion import INSTALL, VARIABLE
from divtrace.commands.main import COMMANDS, cli
from engine.kernels.policy import parse_linear_rule
from engine.settings import EngineSettings
from tests.divtrace.report.pairs import write_flip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two traces, notes, a workload and a folder of runs."""
    for name, is_shared in (("serial.h5", False), ("batched.h5", True)):
        write_flip(tmp_path / name, is_shared).close()
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "runs").mkdir()
    write_flip(tmp_path / "runs" / "only.h5", False).close()
    request = {"id": "r", "prompt_tokens": [1], "max_tokens": 1}
    workload = {"model": "smollm2", "requests": [request], "arms": {"serial": {}, "batched": {}}}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(workload, sort_keys=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def offered(*words: str) -> list[tuple[str, str]]:
    """(type, value) of what is offered for the last word."""
    completer = ShellComplete(cli, {}, "divtrace", VARIABLE)
    return [(item.type, str(item.value)) for item in completer.get_completions(list(words[:-1]), words[-1])]


def values(*words: str) -> list[str]:
    return [value for _, value in offered(*words)]


def test_commands_and_options_are_offered() -> None:
    assert values("") == list(COMMANDS)
    assert values("re") == ["record", "replay", "report"]
    assert values("blame", "a.h5", "b.h5", "--past") == ["--past-flip"]
    assert values("record", "case.yaml", "--level", "") == ["tokens", "logits", "kv", "tensors"]


def test_traces_are_offered_where_there_are_only_files(folder: Path) -> None:
    assert values("diff", "runs/") == ["runs/only.h5"]
    assert values("diff", "s") == ["serial.h5"]
    assert offered("diff", "") == [("file", "")]  # there are folders to go into: the shell knows how
    assert offered("diff", "n") == [("file", "n")]
    assert values("diff", "nowhere/") == []


def test_request_ids_are_offered(folder: Path) -> None:
    assert values("diff", "serial.h5", "batched.h5", "--request", "") == ["anchor", "guest"]
    assert values("blame", "serial.h5", "batched.h5", "--request", "a") == ["anchor"]


@pytest.mark.parametrize("trace", ["nowhere.h5", "notes.txt", "runs", "https://example.invalid/a.h5"])
def test_what_is_no_trace_offers_no_ids_and_says_nothing(
    folder: Path, trace: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert values("diff", trace, "--request", "") == []
    assert capfd.readouterr() == ("", "")


def test_arms_settings_and_policies_are_offered(folder: Path) -> None:
    assert values("record", "case.yaml", "--arm", "") == ["serial:", "batched:"]
    assert values("record", "case.yaml", "--arm", "x:pol") == ["x:policy="]
    assert values("record", "case.yaml", "--arm", "x:max_active=1,policy=g") == [
        "x:max_active=1,policy=gemv",
        "x:max_active=1,policy=gemm",
    ]


def test_offered_policies_and_settings_exist() -> None:
    for policy in POLICIES:
        parse_linear_rule(policy)
    for setting in values("record", "case.yaml", "--arm", "x:"):
        assert setting.removeprefix("x:").removesuffix("=") in EngineSettings.model_fields


@pytest.mark.parametrize("shell", INSTALL)
def test_the_script_is_printed_and_the_way_to_install_it_is_said_apart(shell: str) -> None:
    answer = CliRunner().invoke(cli, ["completion", shell], prog_name="divtrace")
    assert answer.exit_code == 0
    assert VARIABLE in answer.stdout
    assert answer.stderr.splitlines() == [f"To install: {INSTALL[shell]}"]
    assert "To install" not in answer.stdout


def test_an_unknown_shell_is_a_mistake() -> None:
    with pytest.raises(click.BadParameter, match="bash"):
        cli.main(["completion", "tcsh"], prog_name="divtrace", standalone_mode=False)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("divtrace rec", ["record"]),
        ("divtrace diff runs/", ["runs/only.h5"]),
        ("divtrace diff serial.h5 batched.h5 --request ", ["anchor", "guest"]),
    ],
)
def test_bash_completes_with_the_printed_script(folder: Path, line: str, expected: list[str]) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    command = folder / "bin" / "divtrace"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m divtrace "$@"\n')
    command.chmod(0o755)
    root = Path(__file__).parents[3]
    environment = os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
    }
    words = line.split(" ")
    script = (
        'eval "$(divtrace completion bash 2>/dev/null)"\n'
        f"COMP_WORDS=({' '.join(word or repr('') for word in words)}); COMP_CWORD={len(words) - 1}\n"
        "_divtrace_completion divtrace 2>/dev/null\n"
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, env=environment, cwd=folder, check=True
    )
    assert done.stdout.split() == expected, done.stderr
