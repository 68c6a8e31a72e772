"""The answer of `divtrace blame` as a JSON document, and the schema that describes it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from divtrace.render.verdict import verdict_sentence
from divtrace.verdict.records import BlameResult

_BLAME = TypeAdapter(BlameResult)
ADDED = {
    "sentence": {"type": "string", "description": "The answer in one sentence."},
    "exit_status": {"type": "integer", "enum": [0, 1, 2], "description": "The command's exit code."},
}
FLIPS = {"type": "boolean", "description": "Whether the changed run comes out as the other run did."}


def blame_document(result: BlameResult) -> dict[str, Any]:
    """What `divtrace blame --json` prints: the result, its sentence and the exit status; NaN becomes null."""
    document: dict[str, Any] = json.loads(_BLAME.dump_json(result))
    if result.proof is not None:
        for trial, entry in zip(result.proof.trials, document["proof"]["trials"], strict=True):
            entry["flips"] = trial.flips
    return document | {"sentence": verdict_sentence(result), "exit_status": result.exit_status}


def blame_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of what `blame_document` returns."""
    schema = _BLAME.json_schema(mode="serialization")
    schema["properties"] |= ADDED
    schema["required"] = [*schema["required"], *ADDED]
    trial = schema["$defs"]["Trial"]
    trial["properties"] |= {"flips": FLIPS}
    trial["required"] = [*trial["required"], "flips"]
    return schema
