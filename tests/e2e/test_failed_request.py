"""A request from whose logits no token can be chosen: the others are served, and every command reads the trace."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.e2e.conftest import Divtrace, workload_document

VOCABULARY = 257


def test_record_names_the_failed_request_and_every_command_reads_its_trace(
    divtrace: Divtrace, tiny_model_path: Path, tmp_path: Path
) -> None:
    document = workload_document(tiny_model_path, anchor_tokens=12)
    nothing = {token: float("-inf") for token in range(VOCABULARY)}
    document["requests"][1]["sampling"] = {"logit_bias": nothing}  # type: ignore[index]
    workload = tmp_path / "workload.yaml"
    workload.write_text(yaml.safe_dump(document))
    recorded = divtrace("record", workload, "-o", tmp_path / "runs")
    assert recorded.code == 0, recorded.err
    assert "error: request 'follower', position 40: every logit is -inf, so no token can be chosen" in recorded.err
    serial, batched = tmp_path / "runs" / "serial.h5", tmp_path / "runs" / "batched.h5"
    for trace in (serial, batched):
        assert "no findings" in divtrace("check", trace).out
        assert json.loads(divtrace("replay", trace, "--json").out)["equal"] is True
        assert "error" in divtrace("show", trace).out
    found = json.loads(divtrace("diff", serial, batched, "--json").out)
    endings = {request["id_a"]: request["ending_b"]["reason"] for request in found["requests"]}
    assert endings == {"anchor": "length", "follower": "error"}
