"""The policy file: JSON, written by `tune` and read back without trust."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PositiveInt, ValidationError

from engine.errors import SettingsError
from engine.kernels.policy import LinearPath
from engine.settings import Strict, describe_validation_error
from engine.tune.records import PathRange, TunedPolicy, TuneResult

MOST_BYTES = 4 * 1024 * 1024
REPEAT = "run `divtrace tune` again"


def _pair(value: Any) -> Any:
    return {"max_rows": value[0], "path": value[1]} if isinstance(value, list) and len(value) == 2 else value


class _Range(Strict):
    max_rows: PositiveInt | None
    path: LinearPath


class _PolicyFile(Strict):
    version: Literal[1]
    model: str = ""
    environment: dict[str, Any] = Field(default_factory=dict)
    shapes: dict[str, Annotated[list[Annotated[_Range, BeforeValidator(_pair)]], Field(min_length=1)]]
    timings: dict[str, Any] = Field(default_factory=dict)


def write_policy(result: TuneResult, path: Path) -> None:
    """Write a tuning's choices, with its timings and the machine for whoever reads the file.

    Raises:
        SettingsError: the file cannot be written.
    """
    content = {
        "version": 1,
        "model": result.model,
        "environment": dict(result.environment),
        "shapes": {
            shape: [[choice.max_rows, choice.path] for choice in ranges]
            for shape, ranges in result.policy.shapes.items()
        },
        "timings": {
            timed.shape: {str(rows): dict(by_path) for rows, by_path in timed.milliseconds.items()}
            for timed in result.timings
        },
    }
    try:
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{path} cannot be written: {error.strerror}; choose another file.") from None


def read_policy(path: Path) -> TunedPolicy:
    """Read the choices of a policy file.

    Raises:
        SettingsError: it does not exist, is no policy file, or a value makes no sense; one sentence.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise SettingsError(f"{path} is larger than {MOST_BYTES} bytes; it is hardly a kernel policy file.")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}; write it with `divtrace tune`.") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise SettingsError(f"{path} is not JSON; {REPEAT}.") from None
    if not isinstance(values, dict):
        raise SettingsError(f"{path} holds no kernel policy; {REPEAT}.")
    try:
        parsed = _PolicyFile.model_validate(values)
    except ValidationError as error:
        raise SettingsError(describe_validation_error(error, str(path))) from None
    return TunedPolicy({shape: _ranges(ranges, shape, path) for shape, ranges in parsed.shapes.items()})


def _ranges(ranges: list[_Range], shape: str, path: Path) -> tuple[PathRange, ...]:
    limits = [item.max_rows for item in ranges]
    bounded = [limit for limit in limits[:-1] if limit is not None]
    ascending = all(low < high for low, high in pairwise(bounded))
    if limits[-1] is not None or len(bounded) != len(limits) - 1 or not ascending:
        raise SettingsError(
            f"{path}: the row limits of shape {shape!r} are {limits}; they must rise and end with null; {REPEAT}."
        )
    return tuple(PathRange(item.max_rows, item.path.value) for item in ranges)
