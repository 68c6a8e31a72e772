"""Arms as a caller asks for them: a mapping, or texts as on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from divtrace.errors import DivtraceError

_EXAMPLES = "give arms as {'serial': {'max_active': 1}} or as texts, ['serial:max_active=1']"

Arms: TypeAlias = Mapping[str, Mapping[str, Any]] | Iterable[str]


def arms_asked_for(arms: Arms | None) -> list[tuple[str, Mapping[str, Any]]]:
    """Names with the settings that each arm changes; empty where the workload's own arms are wanted.

    Raises:
        DivtraceError: a text is not `name:key=value,key=value`, or something else was given.
    """
    if arms is None:
        return []
    if isinstance(arms, Mapping):
        return [(name, _changes(name, changes)) for name, changes in arms.items()]
    if isinstance(arms, str):
        arms = (arms,)
    if not isinstance(arms, Iterable):
        raise DivtraceError(f"arms are {arms!r}; {_EXAMPLES}.")
    return [_arm(arm) for arm in arms]


def _arm(arm: object) -> tuple[str, dict[str, Any]]:
    if not isinstance(arm, str):
        raise DivtraceError(f"{arm!r} is no arm; {_EXAMPLES}.")
    return parse_arm(arm)


def _changes(name: object, changes: object) -> Mapping[str, Any]:
    if not isinstance(name, str) or not isinstance(changes, Mapping):
        raise DivtraceError(f"arm {name!r} is given as {changes!r}; {_EXAMPLES}.")
    return dict(changes)


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    """`name:key=value,key=value`; a dotted key reaches into a group (`speculation.tokens=4`).

    Raises:
        DivtraceError: a part has no `=`, or contradicts an earlier one.
    """
    name, _, rest = text.partition(":")
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise DivtraceError(f"{part!r} is not key=value; write --arm {name or 'NAME'}:max_active=1.")
        target = values
        *groups, leaf = key.strip().split(".")
        for group in groups:
            target = target.setdefault(group, {})
            if not isinstance(target, dict):
                raise DivtraceError(f"arm {name!r} sets {group!r} both to a value and by its parts; give one of them.")
        target[leaf] = _scalar(value.strip())
    return name, values


def _scalar(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text
