"""Results as JSON documents, and the JSON schemas that describe them. Numbers that are not finite become null."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from divtrace.divergence.records import DiffResult
from divtrace.origin.records import OriginResult
from divtrace.render.blame import blame_sentence
from divtrace.render.diff import diff_sentence

_DIFF = TypeAdapter(DiffResult)
_ORIGIN = TypeAdapter(OriginResult)


def diff_document(result: DiffResult) -> dict[str, Any]:
    """What `divtrace diff --json` prints: the result, its sentence and the exit status."""
    document: dict[str, Any] = json.loads(_DIFF.dump_json(result))
    return document | {"sentence": diff_sentence(result), "exit_status": result.exit_status}


def origin_document(result: OriginResult) -> dict[str, Any]:
    """The walk's part of `divtrace blame --json`: the result and its sentence."""
    document: dict[str, Any] = json.loads(_ORIGIN.dump_json(result))
    return document | {"sentence": blame_sentence(result)}


def diff_schema() -> dict[str, Any]:
    """JSON schema of `DiffResult`."""
    return _DIFF.json_schema()


def origin_schema() -> dict[str, Any]:
    """JSON schema of `OriginResult`."""
    return _ORIGIN.json_schema()
