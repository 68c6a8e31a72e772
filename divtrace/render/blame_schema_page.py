"""The schema of `divtrace blame --json` as Markdown: `python -m divtrace.render.blame_schema_page` prints the page.

With `--schema` it prints the JSON schema itself.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from divtrace.render.blame_document import blame_schema
from divtrace.verdict.records import SCHEMA

HEAD = f"""# `divtrace blame --json`

One JSON document on standard output, schema `{SCHEMA}`; what is not finite is `null`. This page is made from the
program's own records by `python -m divtrace.render.blame_schema_page`, and a test holds it to them;
`python -m divtrace.render.blame_schema_page --schema` prints the same as a JSON schema (2020-12).

The number behind the slash changes when a field goes, or means something else; new fields may come without that, so
read what you know and leave the rest alone. [blame.md](blame.md) explains what the words mean.

```sh
divtrace blame base.h5 head.h5 --json > blame.json
jq -r '.sentence, .verdict, .confidence' blame.json
jq -r '.controls[] | select(.holds == false) | .evidence' blame.json
jq -r '.origins.origins[0] | "step \\(.step_b), layer \\(.layer), \\(.site_classes | join(", "))"' blame.json
```
"""


def page() -> str:
    """The whole page."""
    schema = blame_schema()
    parts = [HEAD, _section("The document", schema)]
    parts += [_section(name, record) for name, record in _in_order(schema)]
    return "\n".join(parts)


def _in_order(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Records in the order in which a reader of the document meets them."""
    definitions, seen, queue = schema["$defs"], set(), _referred(schema["properties"])
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        yield name, definitions[name]
        queue = _referred(definitions[name]) + queue


def _referred(record: Any) -> list[str]:
    if isinstance(record, Mapping):
        own = [str(record["$ref"]).rpartition("/")[2]] if "$ref" in record else []
        return own + [name for value in record.values() for name in _referred(value)]
    return [name for value in record for name in _referred(value)] if isinstance(record, list) else []


def _section(name: str, record: Mapping[str, Any]) -> str:
    lines = [f"## {name}", "", _paragraphs(record.get("description", ""))]
    if "enum" in record:
        return "\n".join([*lines, "", "One of " + ", ".join(f"`{value}`" for value in record["enum"]) + ".", ""])
    lines += ["", "| field | type |", "|---|---|"]
    lines += [f"| `{field}` | {_type(kind)} |" for field, kind in record.get("properties", {}).items()]
    return "\n".join([*lines, ""])


def _paragraphs(text: str) -> str:
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(part.replace("|", "\\|") if part.startswith("|") else part for part in paragraphs)


def _type(kind: Mapping[str, Any]) -> str:
    if "$ref" in kind:
        name = str(kind["$ref"]).rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_type(part) for part in kind["anyOf"])
    if kind.get("type") == "array":
        items = kind.get("items")
        return f"list of {_type(items)}" if items else "list"
    return str(kind.get("type", "any"))


if __name__ == "__main__":
    print(json.dumps(blame_schema(), indent=2) if "--schema" in sys.argv[1:] else page(), end="")
