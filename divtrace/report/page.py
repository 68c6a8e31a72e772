"""Puts words, tables, data and assets into one HTML file that asks nobody for anything.

Two walls against what a trace may hold: Jinja2 escapes every value and data goes in as JSON without `<`, `>` and `&`;
and the page's content security policy lets only these very scripts and styles run, by their hashes, and no request out.
"""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from divtrace.report.chain import ChainCard
from divtrace.report.model import Report
from divtrace.report.story import Story
from divtrace.report.tables import PageTable

STYLES = ("uplot/uPlot.min.css", "report.css")
SCRIPTS = (
    "uplot/uPlot.iife.min.js",
    "core.js",
    "theme.js",
    "selection.js",
    "palette.js",
    "steps.js",
    "view.js",
    "row_curve.js",
    "timeline.js",
    "timeline_marks.js",
    "curves.js",
    "texts.js",
    "kv_map.js",
    "paths.js",
    "inspector.js",
    "main.js",
)
TEMPLATE = "report.html"


@dataclass(frozen=True, slots=True)
class Page:
    """All that the template shows. Tables that are None have no section."""

    title: str
    story: Story | None
    chain: tuple[ChainCard, ...]
    glossary: tuple[tuple[str, str], ...]
    origin: PageTable | None
    controls: PageTable | None
    trials: PageTable | None
    reference: PageTable | None
    past_flip: PageTable | None
    settings: PageTable | None
    requests: PageTable | None
    drafts: PageTable | None
    facts: tuple[tuple[str, str], ...]
    next_time: tuple[str, ...]
    commands: tuple[str, ...]
    version: str


def render_page(page: Page, report: Report) -> str:
    """The whole HTML document."""
    style = "\n".join(asset(name) for name in STYLES)
    script = "\n".join(asset(name) for name in SCRIPTS)
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: asset(name) if name == TEMPLATE else None),
    )
    return environment.get_template(TEMPLATE).render(
        page=page,
        report=report,
        data=Markup(script_safe_json(report)),
        # The assets are the package's own files; nothing of a trace is in them.
        style=Markup(style),
        script=Markup(script),
        policy=_policy(script, style),
    )


def script_safe_json(document: object) -> str:
    """JSON that can stand in a script element: no `<`, `>` or `&`, ASCII only, and no NaN.

    Raises:
        ValueError: a number is NaN or infinite.
    """
    text = json.dumps(document, default=_fields_of, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Text of a file of this package's assets."""
    return (resources.files("divtrace.report") / "assets" / name).read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    return (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def _fields_of(record: Any) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
