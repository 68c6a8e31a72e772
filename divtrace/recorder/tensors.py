"""Whole arrays of chosen sites, requests and steps, and a ring of the last steps for when something goes wrong.

Must not know tables or files: it decides which arrays are worth keeping and why.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from divtrace.errors import DivtraceError
from divtrace.recorder.hashing import as_numpy
from divtrace.recorder.logits import top_logits
from divtrace.recorder.step_flags import StepFlag
from engine.observer import StepEvent


class Trigger(StrEnum):
    """Why arrays are kept."""

    ASKED = "asked"
    GAP = "gap"
    NOT_FINITE = "not_finite"
    AUDIT = "audit"


@dataclass(frozen=True, slots=True)
class TensorSettings:
    """What level `tensors` keeps.

    Outputs of `sites` (module paths of linears), K and V of `layers`, and logits, of all packed rows; with
    `request_ids`, only in steps in which one of these runs. `steps` are kept in any case; the step in which a trigger
    fires is kept with up to `ring_steps` steps before it: a gap below `gap_below`, NaN or Inf, or an audit failure.
    """

    sites: tuple[str, ...] = ()
    layers: tuple[int, ...] = ()
    logits: bool = True
    request_ids: tuple[str, ...] = ()
    steps: range = range(0)
    ring_steps: int = 0
    gap_below: float | None = None

    @property
    def keeps_something(self) -> bool:
        """True when some step's arrays can be kept: there are arrays, and steps or a ring."""
        return bool(self.sites or self.layers or self.logits) and bool(len(self.steps) or self.ring_steps)

    def check_layers(self, layers: int) -> None:
        """Make sure that a model of so many layers has those that are named.

        Raises:
            DivtraceError: it has not.
        """
        for layer in self.layers:
            if not 0 <= layer < layers:
                raise DivtraceError(
                    f"the choice of tensors names layer {layer}; the model has layers 0 to {layers - 1}."
                )

    def wants(self, event: StepEvent) -> bool:
        """True when a step may be kept at all."""
        present = {segment.request_id for segment in event.batch.segments}
        return not self.request_ids or not present.isdisjoint(self.request_ids)


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """One array of one step: its bytes are a copy, bfloat16 as uint16 patterns with its name in `dtype`."""

    step: int
    site: str
    dtype: str
    array: npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class KeptStep:
    """The arrays of one step and why they are kept."""

    trigger: Trigger
    tensors: tuple[KeptTensor, ...]


def fired_trigger(settings: TensorSettings, event: StepEvent, flags: StepFlag) -> Trigger | None:
    """The reason to keep the ring after this step, if there is one."""
    if flags & StepFlag.AUDIT_FAILED:
        return Trigger.AUDIT
    if flags & (StepFlag.LOGITS_NOT_FINITE | StepFlag.KV_NOT_FINITE):
        return Trigger.NOT_FINITE
    if settings.gap_below is not None and _smallest_gap(event) < settings.gap_below:
        return Trigger.GAP
    return None


def _smallest_gap(event: StepEvent) -> float:
    """Smallest distance of the two largest processed logits over the committed rows; infinite without any."""
    head_rows = [row.head_row for row in event.sampled if row.committed]
    if not head_rows or event.processed_logits.shape[1] < 2:
        return float("inf")
    top = top_logits(event.processed_logits[head_rows], 2).values
    return float((top[:, 0] - top[:, 1]).min())


class TensorRing:
    """The last steps' arrays. What was kept once is not kept again."""

    def __init__(self, settings: TensorSettings) -> None:
        self.settings = settings
        self._ring: deque[tuple[KeptTensor, ...]] = deque(maxlen=settings.ring_steps)

    def step_finished(self, event: StepEvent, fired: Trigger | None) -> list[KeptStep]:
        """Copy what the settings name; return what is to be written now, oldest step first."""
        asked = event.batch.step in self.settings.steps
        if not (asked or self.settings.ring_steps) or not self.settings.wants(event):
            return []
        tensors = tuple(self._collect(event))
        if fired is not None and self.settings.ring_steps:
            kept = [KeptStep(fired, earlier) for earlier in self._ring]
            self._ring.clear()
            return [*kept, KeptStep(fired, tensors)]
        if asked:
            return [KeptStep(Trigger.ASKED, tensors)]
        self._ring.append(tensors)
        return []

    def _collect(self, event: StepEvent) -> Iterator[KeptTensor]:
        arrays = {site: event.tensors[site] for site in self.settings.sites if site in event.tensors}
        for layer, written in enumerate(event.kv_rows or ()):
            if layer in self.settings.layers:
                arrays |= {f"kv.{layer}.keys": written.keys, f"kv.{layer}.values": written.values}
        if self.settings.logits:
            arrays["logits"] = event.logits
        for site, array in arrays.items():
            copy = np.array(as_numpy(array))
            dtype = "bfloat16" if "bfloat16" in str(array.dtype) else str(copy.dtype)
            yield KeptTensor(event.batch.step, site, dtype, copy)
