"""The answer of `divtrace blame` as a JSON document, and the schema that describes it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from divtrace.blame.records import BlameResult
from divtrace.render.verdict import verdict_sentence

_BLAME = TypeAdapter(BlameResult)


def blame_document(result: BlameResult) -> dict[str, Any]:
    """What `divtrace blame --json` prints: the result, its sentence and the exit status; NaN becomes null."""
    document: dict[str, Any] = json.loads(_BLAME.dump_json(result))
    return document | {"sentence": verdict_sentence(result), "exit_status": result.exit_status}


def blame_schema() -> dict[str, Any]:
    """JSON schema of `BlameResult`."""
    return _BLAME.json_schema()
