"""`import divtrace`: what it offers, that it is quick, and that it says what the commands say."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import divtrace
from divtrace.commands.main import run
from divtrace.render.blame_document import blame_document
from divtrace.render.document import diff_document
from fixtures.tiny_gguf import write_tiny_gguf
from tests.divtrace.report.pairs import write_flip

FUNCTIONS = ("record", "open_trace", "diff", "blame", "probe")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two small runs that split."""
    folder = tmp_path_factory.mktemp("pair")
    paths = folder / "serial.h5", folder / "batched.h5"
    for path, is_shared in zip(paths, (False, True), strict=True):
        write_flip(path, is_shared).close()
    return paths


@pytest.fixture(scope="module")
def workload(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two requests of a tiny model in two arms."""
    model = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write_tiny_gguf(model, "llama", storage="Q4_1")
    requests = [
        {"id": name, "prompt_tokens": list(range(first, first + 6)), "max_tokens": 4, "ignore_eos": True}
        for name, first in (("anchor", 5), ("follower", 60))
    ]
    arms = {"serial": {"max_active": 1}, "batched": {"max_active": 2}}
    return {"model": str(model), "requests": requests, "settings": {"policy": "threshold:2"}, "arms": arms}


def answer_of(capfd: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Exit code and output of a command line."""
    capfd.readouterr()
    code = run([str(argument) for argument in arguments])
    return code, *capfd.readouterr()


def test_importing_the_package_loads_neither_mlx_nor_hdf5() -> None:
    program = "import divtrace, sys; print(sorted({'mlx', 'h5py', 'numpy', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there_and_none_is_a_module() -> None:
    assert set(FUNCTIONS) <= set(divtrace.__all__) <= set(dir(divtrace))
    for name in divtrace.__all__:
        assert not isinstance(getattr(divtrace, name), type(sys)), name
    for name in FUNCTIONS:
        assert callable(getattr(divtrace, name))
    with pytest.raises(AttributeError, match="bisect"):
        divtrace.bisect  # type: ignore[attr-defined]  # noqa: B018


def test_a_type_checker_is_shown_the_names_that_are_loaded_at_run_time() -> None:
    tree = ast.parse(Path(divtrace.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    shown = {
        alias.name: node.module for node in blocks[0].body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert shown == divtrace._HOMES
    assert (Path(divtrace.__file__).parent / "py.typed").exists()


def test_diff_gives_what_the_command_prints(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer_of(capfd, "diff", *pair, "--json")
    result = divtrace.diff(*pair)
    assert json.loads(out) == json.loads(json.dumps(diff_document(result)))
    assert result.exit_status == code == 1
    assert isinstance(result, divtrace.DiffResult)


def test_blame_gives_what_the_command_prints(pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer_of(capfd, "blame", *pair, "--json", "--no-proof", "--request", "anchor")
    result = divtrace.blame(*pair, proof=False, request="anchor")
    assert json.loads(out) == json.loads(json.dumps(blame_document(result)))
    assert result.exit_status == code == 1


def test_text_paths_and_open_traces_are_one_and_open_ones_stay_open(pair: tuple[Path, Path]) -> None:
    by_path = divtrace.diff(*pair)
    assert divtrace.diff(str(pair[0]), str(pair[1])) == by_path
    with divtrace.open_trace(pair[0]) as a, divtrace.open_trace(pair[1]) as b:
        assert divtrace.diff(a, b) == by_path
        assert divtrace.blame(a, b, proof=False).diff == by_path
        assert a.step_count > 0
        assert a.request_ids() == ["anchor", "guest"]


def test_a_file_object_can_be_compared(pair: tuple[Path, Path]) -> None:
    with pair[0].open("rb") as file:
        assert divtrace.diff(file, pair[1]).outcome == divtrace.diff(*pair).outcome


def test_a_bundle_is_two_traces(pair: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    case = tmp_path / "case.zip"
    assert answer_of(capfd, "bundle", *pair, "-o", case)[0] == 0
    assert divtrace.diff(case).requests == divtrace.diff(*pair).requests
    assert divtrace.blame(case, proof=False).verdict == divtrace.blame(*pair, proof=False).verdict


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        ({"a": "nowhere.h5", "b": "nowhere.h5"}, ["blame", "nowhere.h5", "nowhere.h5"]),
        ({"a": "nowhere.h5"}, ["blame", "nowhere.h5"]),
        (
            {"a": "x.h5", "b": "y.h5", "proof": False, "reference": True},
            ["blame", "x", "y", "--no-proof", "--reference"],
        ),
        ({"request": "nobody", "proof": False}, ["blame", "A", "B", "--request", "nobody", "--no-proof"]),
    ],
)
def test_a_mistake_is_the_commands_sentence(
    pair: tuple[Path, Path], capfd: pytest.CaptureFixture[str], arguments: dict[str, Any], command: list[str]
) -> None:
    if "a" not in arguments:
        arguments = {"a": pair[0], "b": pair[1], **arguments}
        command = [{"A": str(pair[0]), "B": str(pair[1])}.get(word, word) for word in command]
    with pytest.raises(divtrace.DivtraceError) as caught:
        divtrace.blame(**arguments)
    code, out, err = answer_of(capfd, *command)
    assert (code, out, err.strip()) == (2, "", f"divtrace: {caught.value}")


@pytest.mark.parametrize("bad", [{"past_flip": 513}, {"past_flip": -1}, {"joint_trials": 1.5}, {"position": True}])
def test_a_number_out_of_its_range_is_named(pair: tuple[Path, Path], bad: dict[str, Any]) -> None:
    with pytest.raises(divtrace.DivtraceError, match=f"{next(iter(bad))} is .* whole number"):
        divtrace.blame(*pair, proof=bool(bad), **bad)


def test_record_writes_the_traces_that_the_command_writes(
    workload: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "case.yaml"
    file.write_text(yaml.safe_dump(workload, sort_keys=False))
    assert answer_of(capfd, "record", file, "-o", tmp_path / "command")[0] == 0
    runs = divtrace.record(file, tmp_path / "function")
    assert list(runs) == ["serial", "batched"]
    for name, result in runs.items():
        assert result.path == tmp_path / "function" / f"{name}.h5"
        assert set(result.completions) == {"anchor", "follower"}
        same = divtrace.diff(result, tmp_path / "command" / f"{name}.h5")
        assert (same.exit_status, same.compared.tokens) == (0, 8)
        with divtrace.open_trace(result) as trace:
            assert trace.step_count == result.steps


def test_record_takes_a_mapping_arms_and_options(workload: dict[str, Any], tmp_path: Path) -> None:
    runs = divtrace.record(
        workload, tmp_path, arms={"gemv": {"policy": "gemv"}}, level="kv", top_k=3, kv_blocks=64, audit=2
    )
    with divtrace.open_trace(runs["gemv"]) as trace:
        assert (str(trace.header.level), trace.header.top_k) == ("kv", 3)
        assert (trace.header.settings["policy"], trace.header.settings["kv_blocks"]) == ("gemv", 64)
        assert trace.header.settings["audit_every"] == 2
    texts = divtrace.record(workload, tmp_path / "texts", arms=["gemv:policy=gemv"], kv_blocks=64, level="kv")
    assert divtrace.diff(runs["gemv"], texts["gemv"]).exit_status == 0


def test_a_watcher_hears_of_arms_and_steps(workload: dict[str, Any], tmp_path: Path) -> None:
    from contextlib import contextmanager

    heard: list[Any] = []

    class Watcher(divtrace.RecordWatcher):
        @contextmanager
        def running(self, arm: Any) -> Any:
            heard.append(arm.name)
            yield lambda _: heard.append("step")

        def finished(self, result: divtrace.ArmResult) -> None:
            heard.append(result.steps)

    result = divtrace.record(workload, tmp_path, arms={"only": {"max_active": 2}}, watcher=Watcher())["only"]
    assert heard == ["only", *["step"] * (len(heard) - 2), result.steps]
    assert len(heard) > 3


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"level": "all"}, "tokens, logits, kv, tensors"),
        ({"top_k": 1}, "top_k is 1"),
        ({"kv_blocks": 4, "kv_bytes": 4096}, "--kv-blocks and --kv-bytes"),
        ({"kv_blocks": 0}, "kv_blocks is 0"),
        ({"deterministic": True, "policy_file": "tuned.json"}, "different kernels"),
        ({"arms": ["serial:max_active"]}, "is not key=value"),
        ({"arms": ["serial:speculation=1,speculation.tokens=2"]}, "by its parts"),
        ({"arms": {"unheard": {}}}, "has no arm 'unheard'"),
        ({"arms": {"serial": {"policy": "fast"}}}, "fast"),
        ({"model": "nowhere/nothing.gguf"}, "nothing.gguf"),
    ],
)
def test_what_record_cannot_do_is_said_before_it_runs(
    workload: dict[str, Any], tmp_path: Path, bad: dict[str, Any], words: str
) -> None:
    with pytest.raises(divtrace.DivtraceError, match=words):
        divtrace.record(workload, tmp_path / "runs", **bad)
    assert not list(tmp_path.rglob("proof-*.json"))


def test_a_workload_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(divtrace.DivtraceError, match=r"nowhere\.yaml"):
        divtrace.record("nowhere.yaml", tmp_path)
    with pytest.raises(divtrace.DivtraceError, match="the given workload"):
        divtrace.record({"model": "smollm2"}, tmp_path)


def test_probe_gives_findings(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = answer_of(capfd, "probe", "--shape", "64x32", "--rows", "1,2", "--operation", "rms", "--json")
    result = divtrace.probe(shapes=["64x32"], rows=[1, 2], operations=["rms"])
    document = json.loads(json.dumps(result.to_json()))
    for one in (document, printed := json.loads(out)):
        one.pop("elapsed_s")
        for found in one["findings"]:
            found.pop("time_s")
    assert code == 0
    assert document == printed
    assert isinstance(result, divtrace.ProbeResult)


@pytest.mark.parametrize(
    "bad", [{"shapes": ["64"]}, {"rows": [2, 1]}, {"budget": 0}, {"shapes": "64x32"}, {"seed": -1}]
)
def test_a_probe_that_makes_no_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(divtrace.DivtraceError):
        divtrace.probe(**bad)


def test_a_command_has_the_options_of_its_function() -> None:
    import inspect

    from divtrace.commands import blame, diff, probe, record

    also = {"record": {"workload", "output"}, "blame": {"a", "b", "explain", "as_json"}, "diff": {"a", "b", "as_json"}}
    printed = {"blame": {"no_proof": "proof"}, "probe": {"html": "", "as_json": ""}}
    for module, function in (
        (blame, divtrace.blame),
        (diff, divtrace.diff),
        (probe, divtrace.probe),
        (record, divtrace.record),
    ):
        command: click.Command = module.command
        name = function.__name__
        taken = set(inspect.signature(function).parameters) - {"progress", "on_long_call", "watcher"}
        for parameter in command.params:
            own = printed.get(name, {}).get(parameter.name, parameter.name)
            if str(own).startswith("tensor_"):  # these options together are the argument `tensors`
                own = "tensors"
            also_tensors = own == "tensors" and own not in taken
            assert own in taken or own == "" or parameter.name in also.get(name, ()) or also_tensors, parameter.name
            taken.discard(own)
        assert taken <= {"a", "b"}, (name, taken)


def test_blame_proves_with_the_models_own_re_runs(workload: dict[str, Any], tmp_path: Path) -> None:
    heard: list[str] = []
    runs = divtrace.record(workload | {"requests": _longer(workload["requests"])}, tmp_path / "runs")
    result = divtrace.blame(runs["serial"], runs["batched"], work=tmp_path / "work", progress=heard.append)
    assert result.exit_status == 1
    assert result.proof is not None
    assert heard
    assert any((tmp_path / "work").rglob("proof-*.json"))
    suspicion = divtrace.blame(runs["serial"], runs["batched"], proof=False)
    assert suspicion.proof is None
    assert suspicion.origins == result.origins


def _longer(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**request, "max_tokens": 12} for request in requests]
