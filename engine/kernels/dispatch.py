"""Chooses, runs and records the path of every site in a step. Knows the policy; must not know requests."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx

from engine.kernels.linear import LinearKernel, linear_kernel
from engine.kernels.policy import KernelPolicy
from engine.kernels.site import LinearSite
from engine.observer import Plan, SiteChoice

CallKey = tuple[str, int, mx.Dtype]
"""Site, rows, dtype of the activations."""

KEPT_CALLS = 50_000


@dataclass(frozen=True, slots=True)
class LinearCall:
    """A choice, and the kernel that carries it out."""

    choice: SiteChoice
    kernel: LinearKernel


@dataclass(slots=True)
class Dispatcher:
    """One model's kernel choices. `begin_step` before each forward, `plan` after it.

    `wanted_rows` are the packed rows whose logits somebody asked for: the output projection runs on these alone, so
    head rows and layer rows are two different numbers.
    """

    policy: KernelPolicy
    model: str = "target"
    head_site: str | None = None
    step: int = 0
    packed_rows: int = 0
    wanted_rows: mx.array | None = None
    choices: list[SiteChoice] = field(default_factory=list)
    _linears: dict[CallKey, LinearCall] = field(default_factory=dict)
    _attentions: dict[CallKey, SiteChoice] = field(default_factory=dict)
    _decided_for: tuple[KernelPolicy, str | None] | None = None

    def begin_step(self, step: int, packed_rows: int, wanted_rows: mx.array | None) -> None:
        """Start recording a forward of `packed_rows` rows."""
        self.step = step
        self.packed_rows = packed_rows
        self.wanted_rows = wanted_rows
        self.choices = []
        self._forget_calls()

    def plan(self) -> Plan:
        """Every choice of the forward, in execution order."""
        return tuple(self.choices)

    def linear(self, site: LinearSite, x: mx.array) -> mx.array:
        """Run a linear site on x (..., K) and return (..., N); the head drops rows nobody asked for."""
        if self.wanted_rows is not None and site.name == self.head_site:
            x = x[self.wanted_rows]
        flat = x.reshape(-1, site.input_size)
        key = (site.name, flat.shape[0], x.dtype)
        call = self._linears.get(key)
        if call is None:
            call = self._linears[key] = self._decide(site, flat)
        self.choices.append(call.choice)
        if flat.shape[0] == 0:  # a step of unfinished prefills wants no logits
            return mx.zeros((*x.shape[:-1], site.output_size), x.dtype)
        return call.kernel(site, flat).reshape(*x.shape[:-1], site.output_size)

    def _decide(self, site: LinearSite, flat: mx.array) -> LinearCall:
        rows = flat.shape[0]
        path, decided_by = self.policy.linear_path(self.step, site.name, rows, site.shape_name)
        choice = SiteChoice(
            site=site.name,
            operation="head" if site.name == self.head_site else "linear",
            path=path,
            decided_by=decided_by,
            rows=rows,
            input_size=site.input_size,
            output_size=site.output_size,
            dtype=_dtype_name(flat.dtype),
            bits=site.bits,
            group_size=site.group_size,
            model=self.model,
        )
        return LinearCall(choice, linear_kernel(path))

    def attention(self, site: str, heads: int, head_size: int, dtype: mx.Dtype) -> str:
        """Choose and record the path of an attention site."""
        key = (site, self.packed_rows, dtype)
        choice = self._attentions.get(key)
        if choice is None:
            path, decided_by = self.policy.attention_path(self.step, site)
            choice = self._attentions[key] = SiteChoice(
                site=site,
                operation="attention",
                path=path,
                decided_by=decided_by,
                rows=self.packed_rows,
                input_size=head_size,
                output_size=heads,
                dtype=_dtype_name(dtype),
                bits=0,
                group_size=0,
                model=self.model,
            )
        self.choices.append(choice)
        return choice.path

    def _forget_calls(self) -> None:
        """The same sites meet the same row counts in step after step; what the policy said holds until it changes."""
        decided_for = (self.policy, self.head_site)
        overridden = self.policy.is_overridden(self.step)
        if overridden or self._decided_for != decided_for or len(self._linears) > KEPT_CALLS:
            self._linears.clear()
            self._attentions.clear()
        self._decided_for = None if overridden else decided_for


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
