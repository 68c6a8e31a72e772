"""The header of a trace: facts about a run that hold for all of its steps. Must not know tables or HDF5."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any

from divtrace import __version__
from divtrace.errors import TraceError
from divtrace.trace.schema import HASH_NAME, SCHEMA_VERSION, TABLES, Level

_WHOLE_NUMBERS = ("layers", "kv_heads", "head_size", "vocabulary_size", "top_k")
_TEXTS = ("weights_hash", "tokenizer_hash", "created", "divtrace_version")
LARGEST_NUMBER = 1 << 31
_HASH_NAME = re.compile(r"[a-z0-9_]{1,32}")


@dataclass(frozen=True, slots=True)
class Header:
    """What a trace says about its run.

    `settings`, `environment` and `workload` are JSON values; `created` is an ISO 8601 time (UTC); `tables`
    names the tables in the order that `flushes/lengths` uses. `hash_name` is the hash of K/V rows.
    """

    level: Level
    layers: int
    kv_heads: int
    head_size: int
    vocabulary_size: int
    top_k: int
    settings: Mapping[str, Any]
    environment: Mapping[str, Any]
    weights_hash: str
    tokenizer_hash: str
    workload: Mapping[str, Any] | None = None
    hash_name: str = HASH_NAME
    created: str = ""
    divtrace_version: str = __version__
    schema_version: int = SCHEMA_VERSION
    tables: tuple[str, ...] = tuple(table.name for table in TABLES)

    def to_json(self) -> bytes:
        """The header as UTF-8 JSON.

        Raises:
            TraceError: settings, environment or workload hold something that JSON has no word for.
        """
        record = {field.name: getattr(self, field.name) for field in fields(Header)}
        record["created"] = self.created or datetime.now(UTC).isoformat(timespec="seconds")
        try:
            return json.dumps(record, sort_keys=True, default=_mapping_to_dict).encode()
        except (TypeError, ValueError) as error:
            raise TraceError(f"The run's settings, environment or workload are not JSON-ready: {error}.") from error


def parse_header(document: bytes, where: str) -> Header:
    """Read a header and check the type of every field; `where` names the file in errors.

    Raises:
        TraceError: not a header, or fields are missing, of another type or out of range.
    """
    try:
        record = json.loads(document)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where}: the header is not JSON; the file is damaged, record it again.") from error
    if not isinstance(record, dict):
        raise TraceError(f"{where}: the header is not a JSON object; the file is damaged, record it again.")
    for name in (field.name for field in fields(Header)):
        if name not in record or not _is_well_formed(name, record[name]):
            raise TraceError(f"{where}: header field {name!r} is missing or malformed; record the run again.")
    known = {field.name: record[field.name] for field in fields(Header)}
    return Header(**known | {"level": Level(record["level"]), "tables": tuple(record["tables"])})


def _mapping_to_dict(value: object) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _is_well_formed(name: str, value: object) -> bool:
    if name in _WHOLE_NUMBERS:
        return type(value) is int and 0 <= value < LARGEST_NUMBER
    if name == "schema_version":
        return value == SCHEMA_VERSION
    if name == "hash_name":
        return isinstance(value, str) and _HASH_NAME.fullmatch(value) is not None
    if name in _TEXTS:
        return isinstance(value, str)
    if name == "level":
        return value in [level.value for level in Level]
    if name == "tables":
        return isinstance(value, list) and all(isinstance(table, str) for table in value)
    if name == "workload" and value is None:
        return True
    return isinstance(value, dict)
