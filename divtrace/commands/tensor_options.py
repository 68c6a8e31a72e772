"""Options that say which whole arrays level `tensors` keeps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from divtrace.commands.options import whole_numbers

if TYPE_CHECKING:
    from divtrace.recorder.tensors import TensorSettings

OPTIONS = (
    click.option("--tensor-steps", metavar="FIRST-LAST", help="Level tensors: keep arrays of these steps."),
    click.option(
        "--tensor-ring", type=click.IntRange(1), metavar="N",
        help="Keep those of the last N steps and of the one in which NaN, Inf, a failed audit or a small gap appears.",
    ),
    click.option("--tensor-gap", type=float, metavar="X", help="With a ring: a top-2 gap below X is small."),
    click.option("--tensor-layers", metavar="N,N,...", help="Keep K and V of these layers."),
    click.option("--tensor-site", "tensor_sites", multiple=True, metavar="PATH", help="Keep what a linear computes."),
    click.option("--tensor-request", "tensor_requests", multiple=True, help="Only steps in which this request runs."),
)  # fmt: skip


def tensor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; `tensor_settings` turns their values into settings."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def tensor_settings(
    tensor_steps: str | None,
    tensor_ring: int | None,
    tensor_gap: float | None,
    tensor_layers: str | None,
    tensor_sites: tuple[str, ...],
    tensor_requests: tuple[str, ...],
) -> TensorSettings | None:
    """What was chosen; None when none of the options was given.

    Raises:
        click.BadParameter: the steps or layers are not written as they should be.
    """
    from divtrace.recorder.tensors import TensorSettings

    given = (tensor_steps, tensor_ring, tensor_gap, tensor_layers)
    if all(value is None for value in given) and not tensor_sites and not tensor_requests:
        return None
    return TensorSettings(
        sites=tensor_sites,
        layers=() if tensor_layers is None else tuple(whole_numbers(tensor_layers, "--tensor-layers")),
        request_ids=tensor_requests,
        steps=range(0) if tensor_steps is None else _steps(tensor_steps),
        ring_steps=tensor_ring or 0,
        gap_below=tensor_gap,
    )


def _steps(text: str) -> range:
    match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise click.BadParameter(f"{text!r} is no range of steps; write --tensor-steps 3-7, or 3 for one step.")
    return range(int(match[1]), int(match[2] or match[1]) + 1)
